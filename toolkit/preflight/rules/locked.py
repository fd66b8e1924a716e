"""The image is what its manifest and the recipe's lock say it is."""

from __future__ import annotations

from toolkit.errors import ImageMissingError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    seen, manifest = case.seen, case.manifest
    if seen.foreign_manifest:
        cause = f"{seen.image} was changed: the manifest beside it is of another file"
        error = ImageMissingError(
            cause, place="--image", next_step="build or pull it anew, or remove the manifest"
        )
        return [Finding(error, "its manifest")]
    if manifest is None or not manifest.locked or not seen.lock or manifest.locked == seen.lock:
        return []
    cause = (
        f"{manifest.name} was built from another lock than recipes/{manifest.name}.lock is today"
    )
    error = ImageMissingError(
        cause, place="--image", next_step=f"toolkit image build {manifest.name} --locked"
    )
    return [Finding(error, "its manifest", stops=False)]
