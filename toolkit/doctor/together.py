"""What the items about all-reduce share: the sum of `toolkit image verify`, and how fast it was."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked, warned
from toolkit.images.verify.case import Answer as Verified
from toolkit.images.verify.case import Case as ImageCase

MEGABYTES = 16
_SHARE = 0.7  # of what is expected; less is worth a look


def summed(
    case: Case, verify: Callable[[ImageCase], Verified], backend: str, least: int = 2
) -> Answer:
    """Have ranks on all nodes sum, unless it is known already that they cannot meet: then they would wait for minutes.

    Args:
        verify: the check of `toolkit image verify`.
        backend: what carries the sum.
        least: nodes that it takes.
    """
    if case.verified is None:
        return unchecked(case.no_image)
    if why := case.no_nodes(least):
        return why
    if any("error" in way for one in case.told for way in (one.meeting, *one.ways.values())):
        return unchecked("the nodes do not reach each other; see `connections` and `rendezvous`")
    return judged(case, verify(case.verified), backend)


def judged(case: Case, verified: Verified, backend: str) -> Answer:
    """How a sum over all ranks came out and how fast it was, beside what the site expects."""
    if verified.outcome == "unchecked":
        return unchecked(verified.detail)
    if verified.outcome == "failed":
        return failed(
            verified.detail,
            "toolkit explain of a run that ends so; `connections` and `interface` above",
        )
    met = case.verified.met.get(backend) if case.verified else None
    speed = met.speed if met else 0.0
    expected = case.site.allreduce.get(backend) if case.site else None
    text = f"{verified.detail}; {speed:.2f} GB/s per rank for {MEGABYTES} MB"
    if expected is None:
        return passed(
            f"{text} (site {case.site.name if case.site else '?'} does not say what to expect)"
        )
    if speed < _SHARE * expected:
        return warned(
            f"{text}, {expected:g} are expected",
            "which network is used: --env NCCL_DEBUG=INFO, and look for NET/IB or NET/Socket",
        )
    return passed(f"{text}, {expected:g} are expected")
