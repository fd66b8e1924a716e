"""All-reduce by each backend: the sums of `toolkit image verify`, and how fast they are."""

from __future__ import annotations

from functools import partial

from toolkit.checks import Check, Result, failed, passed, unchecked, warned
from toolkit.doctor.case import DoctorCase
from toolkit.images.verify.checks.cluster import BACKENDS, sum_on_nodes

MEGABYTES = 16
_SHARE = 0.7  # of the expected speed; less is worth a warning


def check_sum(backend: str, case: DoctorCase) -> Result:
    """Have ranks on all nodes sum by a backend.

    Ranks that are known not to reach each other would wait for minutes; they are not started.
    """
    if case.image_case is None:
        return unchecked(case.no_image)
    if reason := case.no_reports(1 if BACKENDS[backend].takes_gpus else 2):
        return reason
    links = (link for each in case.reports for link in (each.rendezvous, *each.links.values()))
    if any("error" in link for link in links):
        return unchecked("the nodes do not reach each other; see `connections` and `rendezvous`")
    return judge_speed(case, sum_on_nodes(backend, case.image_case), backend)


def judge_speed(case: DoctorCase, summed: Result, backend: str) -> Result:
    """Compare the speed of a sum with what the site expects."""
    if summed.outcome == "unchecked":
        return summed
    if summed.outcome == "failed":
        step = "toolkit explain of a run that fails so; `connections` and `interface` above"
        return failed(summed.message, step)
    run = case.image_case.runs.get(backend) if case.image_case else None
    speed = float(run.results.get("gigabytes_per_second") or 0.0) if run else 0.0
    expected = case.site.allreduce.get(backend) if case.site else None
    text = f"{summed.message}; {speed:.2f} GB/s per rank for {MEGABYTES} MB"
    if expected is None:
        name = case.site.name if case.site else "?"
        return passed(f"{text} (site {name} does not say what to expect)")
    if speed < _SHARE * expected:
        step = "which network is used: --env NCCL_DEBUG=INFO, and look for NET/IB or NET/Socket"
        return warned(f"{text}, {expected:g} are expected", step)
    return passed(f"{text}, {expected:g} are expected")


CHECKS = tuple(
    Check(
        f"allreduce-{name}",
        f"ranks on all nodes sum by {backend.title}",
        partial(check_sum, name),
        scope="nodes",
    )
    for name, backend in sorted(BACKENDS.items())
)
