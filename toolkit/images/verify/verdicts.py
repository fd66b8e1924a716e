"""Make the checks of an image, and save the verdicts in its manifest.

The results of a build's own checks are in the manifest already. Here everything is checked again
from outside, also of images that were built elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone

from msgspec.structs import replace

from toolkit.checks import Check, Result, failed, passed
from toolkit.errors import BuildError, ToolkitError
from toolkit.images.store import store
from toolkit.images.store.contents import read_contents
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import ImageCase, SiteOffer, local_case
from toolkit.images.verify.checks import CHECKS
from toolkit.images.verify.checks.image_file import check_labels
from toolkit.images.verify.own_checks import run_carried
from toolkit.images.verify.runner import ImageRunner
from toolkit.model.image import Check as ImageCheck
from toolkit.model.image import Manifest, Python, Verdict
from toolkit.shell import Progress

# Returns what the default site offers, or None and why that is not known. Sites are planned for
# above images, so that the caller passes it in.
FindSite = Callable[[], tuple[SiteOffer | None, str]]

# What follows from an answer of another shape than that of our scripts: an image's Python can be
# anything.
_UNEXPECTED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def verdicts(
    case: ImageCase,
    on_verdict: Callable[[Verdict], object] = bool,
    only: Collection[str] | None = None,
) -> tuple[Verdict, ...]:
    """Make the checks of an image in their order.

    Args:
        case: the image.
        on_verdict: is called with each verdict as soon as it is known.
        only: the names of the checks to make; None makes all.
    """
    made: list[Verdict] = []

    def add(name: str, result: Result, site: str = "") -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        outcome = result.outcome
        assert outcome != "warning", f"{name}: a verdict is no warning"
        made.append(Verdict(name=name, outcome=outcome, detail=result.message, when=now, site=site))
        on_verdict(made[-1])

    for check in CHECKS:
        if only is None or check.name in only:
            of_site = case.site is not None and check.scope != "host"
            add(check.name, _result(check, case), case.site.name if case.site and of_site else "")
    if only is None:  # such as the commands of its recipe
        for further in case.results.checks:
            if further.name not in {verdict.name for verdict in made}:
                add(
                    further.name,
                    (passed if further.passed else failed)(further.detail or "it printed nothing"),
                )
    return tuple(made)


def at_build() -> list[str]:
    """Return the names of the checks that every build ends with."""
    return [check.name for check in CHECKS if check.at_build]


def _result(check: Check, case: ImageCase) -> Result:
    try:
        return check.only(case)
    except _UNEXPECTED as error:
        kind = type(error).__name__
        return failed(f"the image's answer has an unexpected form: {kind}: {error}")


def merged(before: tuple[Verdict, ...], now: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """Return the latest verdict of each check and site.

    A check that could not be made now does not replace an earlier verdict.
    """
    latest = {(verdict.name, verdict.site): verdict for verdict in before}
    for verdict in now:
        if verdict.outcome != "unchecked" or (verdict.name, verdict.site) not in latest:
            latest[(verdict.name, verdict.site)] = verdict
    return tuple(latest.values())


def no_site() -> tuple[None, str]:
    """Return that no site is known."""
    return None, "no site was asked for"


def finish(image: StoredImage, find_site: FindSite = no_site) -> tuple[Verdict, ...]:
    """Verify an image that was just built.

    Checks that take longer, or jobs on nodes, are left to `toolkit image verify`.
    """
    manifest = image.manifest
    assert manifest
    site, reason = find_site()
    case = local_case(image, site=site, no_site=reason, manifest_mpi=manifest.mpi)
    with ThreadPoolExecutor() as ahead:  # each starts the image, while another check does
        ahead.submit(lambda: case.contents)
        return (*manifest.verdicts, *verdicts(case, only=at_build()))


def check_again(image: StoredImage, progress: Progress) -> tuple[ImageCheck, ...]:
    """Run the checks that an image carries, and save the results in its manifest, if it has one.

    Args:
        image: The image.
        progress: Announces a wait for the image's lock.

    Raises:
        BuildError: The image has no checks, or did not run.
        NeedsInstallError: Apptainer is not installed.
    """
    results, printed = run_carried(ImageRunner(image.path))
    if not any(check.name != "checks" for check in results.checks):
        raise BuildError(
            f"the image {image.name} has no checks of its own, or does not run",
            place=image.path,
            details=printed.tail(),
        )
    checks = tuple(results.checks)
    if image.manifest is not None:
        labels = check_labels.only(local_case(image))
        is_passed = labels.outcome == "passed"
        checks = (ImageCheck(name="labels", passed=is_passed, detail=labels.message), *checks)
    store.update_manifest(
        image,
        lambda now: replace(now, checks=checks, frameworks=results.frameworks or now.frameworks),
        progress,
    )
    return checks


def save(image: StoredImage, made: tuple[Verdict, ...], progress: Progress) -> None:
    """Save verdicts to the manifest, under the lock, unless the image was replaced meanwhile."""
    store.update_manifest(image, lambda manifest: _verified(image.path, manifest, made), progress)


def _verified(path: str, manifest: Manifest, made: tuple[Verdict, ...]) -> Manifest:
    pythons = manifest.pythons or _pythons(path)
    return replace(manifest, verified=merged(manifest.verified, made), pythons=pythons)


def _pythons(image: str) -> tuple[Python, ...]:
    """Return the Pythons of an image built before manifests recorded them; none if that fails."""
    with suppress(ToolkitError):
        return read_contents(image).pythons
    return ()
