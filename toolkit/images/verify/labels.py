"""What an image says of itself in its labels is what its manifest says."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked


def verify(case: Case) -> Answer:
    manifest, recipe = case.image.manifest, case.labels.get("toolkit.recipe", "")
    if manifest is None:
        return unchecked(
            f"no manifest to compare with; {f'it says it is {recipe}' if recipe else f'{len(case.labels)} labels of others'}"
        )
    if not recipe:
        return failed("the image names no recipe")
    if recipe != manifest.name:
        return failed(f"the image says it is {recipe}, its manifest says {manifest.name}")
    return passed(f"recipe {recipe}, written by toolkit {case.labels.get('toolkit.version', '?')}")
