"""Running the checks of an image again, in the image as it is."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from toolkit.errors import BuildError
from toolkit.images.build.buildlog import Results
from toolkit.images.recipe.block import CHECKS
from toolkit.images.store import store
from toolkit.images.store.labels import labels
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import FoundImage
from toolkit.model.image import Check

_PATIENCE = 900.0  # seconds for all checks together


def run_checks(image: FoundImage) -> tuple[Check, ...]:
    """Run what the image has at ``CHECKS``; the results also go into its manifest, if it has one.

    Raises:
        BuildError: the image has no checks, or did not run.
        NeedsInstallError: there is no Apptainer.
    """
    said = run_in_image(image.path, ["/bin/sh", f"{CHECKS}/run"], timeout=_PATIENCE)
    results = Results()
    results.checks.extend(_labels(image))
    for line in said.stdout.splitlines():
        results.feed(line)
    if not any(one.name != "labels" for one in results.checks):
        raise BuildError(
            f"the image {image.name} has no checks of its own, or does not run",
            place=image.path,
            details=said.tail(),
        )
    _record(image, results)
    return tuple(results.checks)


def _labels(image: FoundImage) -> list[Check]:
    """Whether the image is what its manifest says, in its own words; a foreign image has neither."""
    if image.manifest is None:
        return []
    said = labels(image.path)
    recipe = said.get("toolkit.recipe", "")
    detail = (
        f"recipe {recipe}, written by toolkit {said.get('toolkit.version', '?')}"
        if recipe
        else "the image names no recipe"
    )
    return [Check(name="labels", passed=recipe == image.manifest.name, detail=detail)]


def _record(image: FoundImage, results: Results) -> None:
    path = Path(image.path)
    if image.manifest is None or not os.access(path.parent, os.W_OK):
        return
    facts = {
        "checks": tuple(results.checks),
        "frameworks": results.frameworks or image.manifest.frameworks,
    }
    store.rewrite_manifest(path, msgspec.structs.replace(image.manifest, **facts))
