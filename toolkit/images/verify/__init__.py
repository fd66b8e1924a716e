"""What can be said of an image with evidence: one module for each check, and a line here.

A check is a function ``verify(case) -> Answer``: passed, failed, or unchecked and why. What a build
has checked stands in the manifest already; here everything is looked at again, from outside, also
of images that nobody here has built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timezone
from typing import NamedTuple, Protocol

from toolkit.errors import ToolkitError
from toolkit.images.verify.case import Answer, Case, failed
from toolkit.model.image import Verdict


class Entry(NamedTuple):
    """A line of the registry. ``of_site``: it holds for one cluster only; ``at_end``: every build ends with it, as it costs little."""

    module: str
    of_site: bool = False
    at_end: bool = False


# In this order, since later checks use what earlier ones found. The names are those of the checks
# that an image carries, where both look at the same thing.
CHECKS: dict[str, Entry] = {
    "manifest": Entry("manifest", at_end=True),
    "size": Entry("size", at_end=True),
    "labels": Entry("labels", at_end=True),
    "signature": Entry("signature", at_end=True),
    "entrypoint": Entry("entrypoint", at_end=True),
    "imports": Entry("imports"),
    "user-site": Entry("user_site"),
    "openmpi": Entry("openmpi"),
    "horovod-build": Entry("horovod_build"),
    "ranks-mpi": Entry("ranks_mpi"),
    "ranks-gloo": Entry("ranks_gloo"),
    "ranks-nccl": Entry("ranks_nccl"),
    "container": Entry("container", of_site=True, at_end=True),
    "pmi": Entry("pmi", of_site=True, at_end=True),
    "nodes-mpi": Entry("nodes_mpi", of_site=True),
    "nodes-gloo": Entry("nodes_gloo", of_site=True),
    "nodes-nccl": Entry("nodes_nccl", of_site=True),
    "driver": Entry("driver", of_site=True, at_end=True),
}


# What comes of an answer of another shape than that of our scripts: an image's Python can be
# anything.
_STRANGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Module(Protocol):
    """A module of this package."""

    def verify(self, case: Case) -> Answer:
        """How it came out."""


def verdicts(
    case: Case,
    on_verdict: Callable[[Verdict], object] = bool,
    only: Collection[str] = CHECKS.keys(),
) -> tuple[Verdict, ...]:
    """Every check of an image, in the order of the registry.

    Args:
        on_verdict: is told each as it is found.
        only: the names of those that are wanted.
    """
    found: list[Verdict] = []
    for verdict in _verdicts(case, only):
        on_verdict(verdict)
        found.append(verdict)
    return tuple(found)


def _verdicts(case: Case, only: Collection[str]) -> Iterator[Verdict]:
    site = case.site.name if case.site else ""
    for name, entry in ((name, entry) for name, entry in CHECKS.items() if name in only):
        module: Module = importlib.import_module(f"toolkit.images.verify.{entry.module}")
        try:
            answer = module.verify(case)
        except ToolkitError as error:
            answer = failed(error.cause)
        except _STRANGE as error:
            kind = type(error).__name__
            answer = failed(f"the image answers what our script does not: {kind}: {error}")
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        yield Verdict(
            name=name,
            outcome=answer.outcome,
            detail=answer.detail,
            when=when,
            site=site if entry.of_site else "",
        )


def merged(before: tuple[Verdict, ...], now: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """The latest of each check and site. What could not be checked now does not put out what was found before."""
    kept = {(one.name, one.site): one for one in before}
    for one in now:
        if one.outcome != "unchecked" or (one.name, one.site) not in kept:
            kept[(one.name, one.site)] = one
    return tuple(kept.values())
