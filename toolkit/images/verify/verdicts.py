"""Make the checks of an image, and save the verdicts in its manifest.

The results of a build's own checks are in the manifest already. Here everything is checked again
from outside, also of images that were built elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone

from msgspec.structs import replace

from toolkit.checks import Result, failed
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import ImageCase, SiteOffer
from toolkit.images.verify.checks import AT_BUILD, CHECKS
from toolkit.model.image import Manifest, Verdict
from toolkit.shell import Progress

# Returns what the default site offers, or None and why that is not known. Sites are planned for
# above images, so that the caller passes it in.
FindSite = Callable[[], tuple[SiteOffer | None, str]]

# What follows from an answer of another shape than that of our scripts: an image's Python can be
# anything.
_UNEXPECTED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def to_verdict(result: Result, site: str = "") -> Verdict:
    """Return the result of a check as the manifest keeps it."""
    assert result.outcome != "warning", f"{result.name}: a verdict is no warning"
    return Verdict(
        name=result.name,
        outcome=result.outcome,
        detail=result.message or "it printed nothing",
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        site=site,
    )


def verdicts(
    case: ImageCase, on_verdict: Callable[[Verdict], object] = bool, *, at_build: bool = False
) -> tuple[Verdict, ...]:
    """Make the checks of an image in their order.

    Args:
        case: the image.
        on_verdict: is called with each verdict as soon as it is known.
        at_build: make only those that every build ends with.
    """
    made: list[Verdict] = []

    def add(result: Result, site: str = "") -> None:
        made.append(to_verdict(result, site))
        on_verdict(made[-1])

    for check in AT_BUILD if at_build else CHECKS:
        try:
            result = check.only(case)
        except _UNEXPECTED as error:
            kind = type(error).__name__
            text = f"the image's answer has an unexpected form: {kind}: {error}"
            result = failed(text, name=check.name)
        add(result, case.site.name if case.site and check.scope != "host" else "")
    known = {verdict.name for verdict in made}
    with suppress(*_UNEXPECTED):  # then the checks above say so
        for result in () if at_build else case.results.checks:  # such as commands of its recipe
            if result.name not in known:
                add(result)
    return tuple(made)


def merged(before: Iterable[Verdict], now: Iterable[Verdict]) -> tuple[Verdict, ...]:
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


def save(
    image: StoredImage,
    made: tuple[Verdict, ...],
    progress: Progress,
    case: ImageCase,
) -> None:
    """Save verdicts, and contents that the manifest lacks, unless the image was replaced meanwhile.

    The manifest is written under the image's lock.
    """

    def verified(manifest: Manifest) -> Manifest:
        return replace(
            manifest,
            verified=merged(manifest.verified, made),
            gpu_code={**manifest.gpu_code, **case.gpu_code},
            pythons=manifest.pythons or case.contents.pythons,
            programs=manifest.programs or case.contents.programs,
        )

    store.update_manifest(image, verified, progress)
