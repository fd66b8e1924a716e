"""Requeue jobs before their time limit, so that they continue from what they have saved. Pure.

Slurm signals the batch shell (``--signal=B:USR1@120``), which signals the ranks, waits for them,
and asks Slurm to queue the job again. Ranks that do not handle the signal ignore it. A job that
exits with 0 meanwhile has finished. The script logs each step in the batch shell's log, from
which ``runs.attempts`` reads the history.
"""

from __future__ import annotations

import re

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.job import Job
from toolkit.model.plan import Requeue
from toolkit.units import counted

_TIMES = 20
_SECONDS = 120
# Slurm checks time limits periodically, and may send a signal up to so many seconds too early.
_EARLY = 60
_SIGNAL = re.compile(r"(?P<to>[BR]{0,2}:)?(?:SIG)?(?P<name>[A-Z]+\d?|\d+)(?:@(?P<seconds>\d+))?\Z")
_NAMES = {"USR1": "USR1", "USR2": "USR2", "10": "USR1", "12": "USR2"}


def decide(job: Job, minutes: int | None) -> Requeue | None:
    """Fill in the defaults of requeueing. Return None if it is off, or ``findings`` has errors.

    Args:
        job: the merged settings.
        minutes: the job's time limit; None: it has none, or that of its partition.
    """
    if not job.requeue or findings(job, minutes):
        return None
    name, seconds = _signal(job, minutes)
    return Requeue(
        signal=name,
        seconds=seconds,
        wait=max(seconds - 20, seconds // 2, 1),
        times=job.max_requeues or _TIMES,
    )


def directive(decided: Requeue) -> str:
    """Return the value of ``--signal``, which signals the batch shell only."""
    return f"B:{decided.signal}@{decided.seconds}"


def findings(job: Job, minutes: int | None) -> list[ToolkitError]:
    """Return the errors of settings that contradict requeueing."""
    if not job.requeue:
        if job.max_requeues is None or job.requeue is not None:
            return []
        cause = "--max-requeues has no effect without --requeue"
        return [UsageError(cause, place="--max-requeues", next_step="add --requeue")]
    match = _SIGNAL.match(job.signal or "B:USR1")
    if not match or "B" not in (match["to"] or "") or match["name"] not in _NAMES:
        cause = f"--requeue needs USR1 or USR2 to the batch shell (B:) only, got {job.signal!r}"
        step = f"--signal B:USR1@{_SECONDS}, or leave --signal out"
        return [UsageError(cause, place="--signal", next_step=step)]
    seconds = _signal(job, minutes)[1]
    if minutes is not None and minutes * 60 <= seconds + _EARLY:
        cause = (
            f"a job of {counted(minutes, 'minute')} would be stopped as soon as it runs: Slurm "
            f"sends the signal {seconds} s before the time limit, and up to {_EARLY} s earlier"
        )
        step = "give a longer --time, or a signal nearer to the end: --signal B:USR1@SECONDS"
        return [UsageError(cause, place="--signal", next_step=step)]
    return []


def warnings(job: Job, script: str) -> tuple[str, ...]:
    """Return a warning for a script that cannot handle the signal.

    Ranks start with the signal ignored, so that it ends no rank that does not handle it, and POSIX
    lets no shell trap a signal that was ignored when the shell started.
    """
    if not job.requeue or not script.endswith(".sh"):
        return ()
    return (
        f"the shell that runs {script} cannot trap the signal of --requeue: "
        "handle it in a program that the script starts",
    )


def _signal(job: Job, minutes: int | None) -> tuple[str, int]:
    """Return the signal, and how many seconds before the time limit Slurm sends it.

    The default is at most a quarter of the time.
    """
    match = _SIGNAL.match(job.signal or "B:USR1")
    assert match
    usual = _SECONDS if minutes is None else max(1, min(_SECONDS, minutes * 15))
    return _NAMES[match["name"]], int(match["seconds"] or usual)
