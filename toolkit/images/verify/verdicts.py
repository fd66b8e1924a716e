"""Make the checks of an image, as verdicts for its manifest.

The results of a build's own checks are in the manifest already. Here everything is checked again
from outside, also of images that were built elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timezone

from toolkit.checks import Check, Registry, Result, failed
from toolkit.images.verify.case import ImageCase
from toolkit.model.image import Verdict

# The names are those of the checks that an image carries, where both examine the same.
REGISTRY: Registry[ImageCase] = Registry("toolkit.images.verify.checks")

# What follows from an answer of another shape than that of our scripts: an image's Python can be
# anything.
_UNEXPECTED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def verdicts(
    case: ImageCase,
    on_verdict: Callable[[Verdict], object] = bool,
    only: Collection[str] | None = None,
) -> tuple[Verdict, ...]:
    """Make the checks of an image in the order of the registry.

    Args:
        case: the image.
        on_verdict: is called with each verdict as soon as it is known.
        only: the names of the checks to make; None makes all.
    """
    made: list[Verdict] = []
    for name, check in REGISTRY.checks.items():
        if only is None or name in only:
            made.append(_verdict(check, case))
            on_verdict(made[-1])
    return tuple(made)


def at_build() -> list[str]:
    """Return the names of the checks that every build ends with."""
    return [name for name, check in REGISTRY.checks.items() if check.traits.at_build]


def _verdict(check: Check[ImageCase], case: ImageCase) -> Verdict:
    result = _result(check, case)
    outcome = result.outcome
    assert outcome != "warning", f"{check.name}: a verdict is no warning"
    of_site = case.site is not None and check.traits.scope != "host"
    return Verdict(
        name=check.name,
        outcome=outcome,
        detail=result.message,
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        site=case.site.name if case.site and of_site else "",
    )


def _result(check: Check[ImageCase], case: ImageCase) -> Result:
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
