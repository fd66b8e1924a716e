"""Run an image's own checks, and verify it at the end of its build.

The results of the image's own checks become verdicts, and the quick checks are made from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import BuildError, ToolkitError
from toolkit.images.build.buildlog import Results
from toolkit.images.recipe.block import CHECKS
from toolkit.images.store import store
from toolkit.images.store.contents import read_contents
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import SiteOffer, local_case
from toolkit.images.verify.checks.image_file import check_labels
from toolkit.images.verify.verdicts import at_build, merged, verdicts
from toolkit.model.image import Check, Python, Verdict

_CHECKS_TIMEOUT = 900.0  # seconds for all checks together

# Returns what the default site offers, or None and why that is not known. Sites are planned for
# above images, so that the caller passes it in.
FindSite = Callable[[], tuple[SiteOffer | None, str]]


def no_site() -> tuple[None, str]:
    """Return that no site is known."""
    return None, "no site was asked for"


def finish(image: StoredImage, find_site: FindSite = no_site) -> tuple[Verdict, ...]:
    """Verify an image that was just built, and save the verdicts in its manifest.

    Checks that take longer, or jobs on nodes, are left to `toolkit image verify`.
    """
    manifest = image.manifest
    assert manifest
    own = tuple(
        Verdict(
            name=check.name,
            outcome="passed" if check.passed else "failed",
            detail=check.detail,
            when=manifest.built,
        )
        for check in manifest.checks
    )
    site, reason = find_site()
    case = local_case(image, site=site, no_site=reason, mpi=manifest.mpi)
    with ThreadPoolExecutor() as ahead:  # each starts the image, while another check does
        ahead.submit(lambda: case.contents)
        made = (*own, *verdicts(case, only=at_build()))
    record(image, made)
    return made


def record(image: StoredImage, made: tuple[Verdict, ...]) -> None:
    """Save verdicts to the manifest if the image directory is writable."""
    path, manifest = Path(image.path), image.manifest
    if manifest is not None and os.access(path.parent, os.W_OK):
        pythons = manifest.pythons or _pythons(image.path)
        verified = merged(manifest.verified, made)
        store.rewrite_manifest(path, replace(manifest, verified=verified, pythons=pythons))


def _pythons(image: str) -> tuple[Python, ...]:
    """Return the Pythons of an image built before manifests recorded them; none if that fails."""
    with suppress(ToolkitError):
        return read_contents(image).pythons
    return ()


def run_checks(image: StoredImage) -> tuple[Check, ...]:
    """Run the image's checks at ``CHECKS``; also save the results in its manifest, if it has one.

    Raises:
        BuildError: The image has no checks, or did not run.
        NeedsInstallError: Apptainer is not installed.
    """
    result = run_in_image(image.path, ["/bin/sh", f"{CHECKS}/run"], timeout=_CHECKS_TIMEOUT)
    results = Results()
    if image.manifest is not None:
        labels = check_labels.only(local_case(image))
        is_passed = labels.outcome == "passed"
        results.checks.append(Check(name="labels", passed=is_passed, detail=labels.message))
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
        store.rewrite_manifest(path, replace(image.manifest, **facts))
    return tuple(results.checks)
