"""Every node can read the image, and how fast a program starts in it."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed, unchecked, warned
from toolkit.units import counted

_SLOW = 10.0  # seconds: then every start of every rank is felt


def check(case: Case) -> Answer:
    if case.ended.outcome is None:
        return unchecked("the job never ran")
    if len(case.told) < case.nodes:
        where = ", ".join(one.host for one in case.told) or "no node"
        failure = case.ended.outcome.get("failure") or {}
        text = failure.get("text") or case.ended.complaint
        return failed(
            f"of {counted(case.nodes, 'node')} only {where} started a program in {case.image.path if case.image else 'it'}: {text}",
            case.ended.fix or "put the image where all nodes see it: toolkit image copy",
        )
    starts = [(one.started, one.host) for one in case.told if one.started > 0]
    if not starts:
        return passed(counted(case.nodes, "node"))
    text = ", ".join(f"{host} {seconds:.1f} s" for seconds, host in starts)
    if max(starts)[0] > _SLOW:
        return warned(
            f"slow to start: {text}",
            "stripe the image over more servers (lfs setstripe), or copy it to the nodes' own disks",
        )
    return passed(f"starts everywhere: {text}")
