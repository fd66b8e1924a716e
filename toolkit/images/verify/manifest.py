"""The manifest beside an image belongs to that very file."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked


def verify(case: Case) -> Answer:
    manifest = case.image.manifest
    if manifest is not None:
        return passed(
            f"{manifest.name}, built {manifest.built}{f' by {manifest.builder}' if manifest.builder else ''}"
        )
    beside = case.path.with_name(f"{case.path.name.removesuffix('.sif')}.json")
    if beside.exists():
        return failed(f"{beside.name} beside it is the manifest of another file")
    return unchecked("a foreign image: no manifest is beside it")
