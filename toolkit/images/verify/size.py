"""The file is as long as its own head says, and as its manifest says."""

from __future__ import annotations

from toolkit.images.store.store import whole_header
from toolkit.images.verify.case import Answer, Case, failed, passed
from toolkit.units import human_size


def verify(case: Case) -> Answer:
    size = case.path.stat().st_size
    whole_header(case.path)
    manifest = case.image.manifest
    if manifest is not None and manifest.size != size:
        return failed(f"{size} bytes, and the manifest says {manifest.size}")
    return passed(
        f"{human_size(size)}, {'as its manifest says' if manifest else 'and nothing that its head names is cut off'}"
    )
