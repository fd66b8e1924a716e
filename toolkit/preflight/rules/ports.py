"""Rules about the ports at which ranks meet."""

from __future__ import annotations

from toolkit.checks import Result, check, from_error
from toolkit.errors import UsageError
from toolkit.model.case import Case
from toolkit.model.site import PORTS

_LOWEST, _HIGHEST = 1024, 65535  # that a user can listen at
_LEAST = 64  # with fewer, jobs on one node meet at the same ones
_LEAVE = "leave it out: the script takes a free one by the job's number"


@check("ports", "ports that ranks may use", order=220)
def check_ports(case: Case) -> list[Result]:
    """Check the ports at which ranks meet.

    A fixed one is taken by the next job on a shared node, and not all may be used.
    """
    results = _range(case)
    text = case.job.env.get("MASTER_PORT")
    if text is not None:
        results.append(_fixed(case, text))
    return results


def _range(case: Case) -> list[Result]:
    """Judge the ports in the site's file."""
    first, last = case.site.ports
    if first >= _LOWEST and last <= _HIGHEST and last - first + 1 >= _LEAST:
        return []
    cause = (
        f"ranks cannot meet at ports {first} to {last}: "
        f"it takes {_LEAST} of those from {_LOWEST} to {_HIGHEST}"
    )
    error = UsageError(
        cause,
        place="ports",
        next_step=f"correct ports of site {case.site.name}, or leave it out: "
        f"{PORTS[0]} to {PORTS[1]}",
    )
    return [from_error(error, case.site.cited)]


def _fixed(case: Case, text: str) -> Result:
    if not text.isdecimal() or not _LOWEST <= int(text) <= _HIGHEST:
        cause = (
            f"MASTER_PORT={text} is not a port that a user can listen at: {_LOWEST} to {_HIGHEST}"
        )
        return from_error(UsageError(cause, place="--env", next_step=_LEAVE), "ip(7)")
    first, last = case.site.ports
    if case.site.ports != PORTS and not first <= int(text) <= last:
        cause = (
            f"MASTER_PORT={text} is not among the ports at which ranks may meet: {first} to {last}"
        )
        return from_error(UsageError(cause, place="--env", next_step=_LEAVE), case.site.cited)
    cause = (
        f"MASTER_PORT={text} is the same for every job, and taken where two of them share a node"
    )
    return from_error(
        UsageError(cause, place="--env", next_step=_LEAVE), "pytorch#116974", stops=False
    )
