"""Ports that ranks meet at: a fixed one is taken by the next job on a shared node, and some may not be used at all."""

from __future__ import annotations

from toolkit.errors import UsageError
from toolkit.rules.model import Case, Finding

OURS = (61000, 65535)  # what templates/meeting.j2 takes by the job's number
_PRIVILEGED = 1024
# Launchers whose ranks meet at a port that the script chooses; MPI's choose by themselves.
_WITHOUT = ("none", "mpi", "mpirun", "horovod")


def look(case: Case) -> list[Finding]:
    found = []
    text = case.job.env.get("MASTER_PORT")
    if text is not None:
        found.append(_fixed(text))
    allowed = case.site.ports
    if allowed is not None and case.job.launcher not in _WITHOUT and not (allowed[0] <= OURS[0] and OURS[1] <= allowed[1]):
        cause = f"ranks meet at a port from {OURS[0]} to {OURS[1]}, the site lets nodes use {allowed[0]} to {allowed[1]}"
        error = UsageError(cause, place="port", next_step="a launcher of MPI's: horovod, mpi")
        found.append(Finding(error, case.source))
    return found


def _fixed(text: str) -> Finding:
    leave = "leave it out: the script takes a free one by the job's number"
    if not text.isdecimal() or not _PRIVILEGED <= int(text) <= OURS[1]:
        cause = f"MASTER_PORT={text} is no port that a user can listen at: {_PRIVILEGED} to {OURS[1]}"
        return Finding(UsageError(cause, place="--env", next_step=leave), "ip(7)")
    cause = f"MASTER_PORT={text} is the same for every job, and taken where two of them share a node"
    return Finding(UsageError(cause, place="--env", next_step=leave), "pytorch#116974", stops=False)
