"""Jobs that go back into the queue before they are stopped, and go on from what they have saved.

Slurm tells the batch shell (``--signal=B:USR1@120``), which tells the ranks, waits for them, and
asks Slurm to queue the job again. Ranks that do not know the signal take no notice of it. Whatever
ends with 0 meanwhile has finished. The script says what it does in lines of the batch shell's log,
from which ``runs.attempts`` reads the history.
"""

from __future__ import annotations

import re

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.job import Job
from toolkit.model.ways import Requeue
from toolkit.units import counted

_TIMES = 20
_SECONDS = 120
_EARLY = (
    60  # Slurm looks at time limits now and then, and may send a signal so many seconds too early
)
_SIGNAL = re.compile(r"(?P<to>[BR]{0,2}:)?(?:SIG)?(?P<name>[A-Z]+\d?|\d+)(?:@(?P<seconds>\d+))?\Z")
_NAMES = {"USR1": "USR1", "USR2": "USR2", "10": "USR1", "12": "USR2"}


def decide(job: Job, minutes: int | None) -> Requeue | None:
    """What was asked for, with what nobody said; None: the job shall not go back into the queue, or ``findings`` has something.

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
    """The value of ``--signal``: to the batch shell alone."""
    return f"B:{decided.signal}@{decided.seconds}"


def findings(job: Job, minutes: int | None) -> list[ToolkitError]:
    """What does not go together with going back into the queue."""
    if not job.requeue:
        alone = job.max_requeues is not None and job.requeue is None
        return (
            [
                UsageError(
                    "it says how often a job goes back, and none does",
                    place="--max-requeues",
                    next_step="--requeue",
                )
            ]
            if alone
            else []
        )
    match = _SIGNAL.match(job.signal or "B:USR1")
    if not match or "B" not in (match["to"] or "") or match["name"] not in _NAMES:
        cause = f"--requeue needs a signal to the batch shell, which is USR1 or USR2 and nothing else's: not {job.signal!r}"
        return [
            UsageError(
                cause, place="--signal", next_step=f"--signal B:USR1@{_SECONDS}, or leave it out"
            )
        ]
    seconds = _signal(job, minutes)[1]
    if minutes is not None and minutes * 60 <= seconds + _EARLY:
        length = counted(minutes, "minute")
        when = f"{seconds} s before its end, and up to {_EARLY} s early"
        cause = f"a job of {length} would be told to stop as soon as it runs: {when}"
        return [
            UsageError(
                cause, place="--signal", next_step="a longer --time, or a signal nearer to the end"
            )
        ]
    return []


def warnings(job: Job, script: str) -> tuple[str, ...]:
    """Return a warning for a script that cannot notice the signal.

    It is ignored where the ranks begin, so that it ends none that does not know it, and POSIX lets
    no shell trap a signal that it was started to ignore.
    """
    if not job.requeue or not script.endswith(".sh"):
        return ()
    return (
        f"the shell that runs {script} cannot trap the signal of --requeue: handle it in a program that the script starts",
    )


def _signal(job: Job, minutes: int | None) -> tuple[str, int]:
    """Which signal, and how many seconds before the end: at most a quarter of the time where nobody says."""
    match = _SIGNAL.match(job.signal or "B:USR1")
    assert match
    usual = _SECONDS if minutes is None else max(1, min(_SECONDS, minutes * 15))
    return _NAMES[match["name"]], int(match["seconds"] or usual)
