"""Run an image's own checks, and ask it for its contents: one start of a container each."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from toolkit.errors import BuildError
from toolkit.images.build.buildlog import Results
from toolkit.images.recipe.block import CHECKS
from toolkit.images.store import store
from toolkit.images.store.contents import SCRIPT, Contents, parse
from toolkit.images.store.labels import labels
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Check

_CONTENTS_TIMEOUT = 300.0  # seconds
_CHECKS_TIMEOUT = 900.0  # seconds for all checks together


def read_contents(path: str) -> Contents:
    """Return the contents of the image at ``path``.

    Raises:
        BuildError: The image does not run, or its output is malformed.
        NeedsInstallError: Apptainer is not installed.
    """
    result = run_in_image(path, ["/bin/sh", "-c", SCRIPT], timeout=_CONTENTS_TIMEOUT)
    try:
        contents = parse(result.stdout)
    except ValueError as error:
        raise BuildError(
            f"the image's list of its contents cannot be read: {error}",
            place=path,
            details=result.tail(),
        ) from None
    if contents is None:
        raise BuildError("the image could not list its contents", place=path, details=result.tail())
    return contents


def run_checks(image: StoredImage) -> tuple[Check, ...]:
    """Run the image's checks at ``CHECKS``; also save the results in its manifest, if it has one.

    Raises:
        BuildError: The image has no checks, or did not run.
        NeedsInstallError: Apptainer is not installed.
    """
    result = run_in_image(image.path, ["/bin/sh", f"{CHECKS}/run"], timeout=_CHECKS_TIMEOUT)
    results = Results()
    results.checks.extend(_check_labels(image))
    for line in result.stdout.splitlines():
        results.feed(line)
    if not any(check.name != "labels" for check in results.checks):
        raise BuildError(
            f"the image {image.name} has no checks of its own, or does not run",
            place=image.path,
            details=result.tail(),
        )
    path = Path(image.path)
    if image.manifest is not None and os.access(path.parent, os.W_OK):
        facts = {
            "checks": tuple(results.checks),
            "frameworks": results.frameworks or image.manifest.frameworks,
        }
        store.rewrite_manifest(path, msgspec.structs.replace(image.manifest, **facts))
    return tuple(results.checks)


def _check_labels(image: StoredImage) -> list[Check]:
    """Check that the image's labels agree with its manifest; a foreign image has neither."""
    if image.manifest is None:
        return []
    own = labels(image.path)
    recipe = own.get("toolkit.recipe", "")
    detail = (
        f"recipe {recipe}, written by toolkit {own.get('toolkit.version', '?')}"
        if recipe
        else "the image names no recipe"
    )
    return [Check(name="labels", passed=recipe == image.manifest.name, detail=detail)]
