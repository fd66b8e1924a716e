"""Jobs that go back into the queue before they are stopped, and go on from what they have saved.

Slurm tells the batch shell (``--signal=B:USR1@120``), which tells the ranks, waits for them, and
asks Slurm to queue the job again. Ranks that do not know the signal take no notice of it. Whatever
ends with 0 meanwhile has finished. The script says what it does in lines of the batch shell's log
(``MARK``), from which the history is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.job import Job
from toolkit.model.ways import Requeue, Stint
from toolkit.runs.logs import Line
from toolkit.units import counted, human_time

MARK = "toolkit: attempt"  # what a line of the history begins with
_TIMES = 20
_SECONDS = 120
_EARLY = (
    60  # Slurm looks at time limits now and then, and may send a signal so many seconds too early
)
_SIGNAL = re.compile(r"(?P<to>[BR]{0,2}:)?(?:SIG)?(?P<name>[A-Z]+\d?|\d+)(?:@(?P<seconds>\d+))?\Z")
_NAMES = {"USR1": "USR1", "USR2": "USR2", "10": "USR1", "12": "USR2"}
_LINE = re.compile(
    re.escape(MARK) + r" (?P<number>\d{1,6}) of at most \d{1,6} (?P<what>begins|ends) "
    r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?: on (?P<nodes>\S+))?(?:: (?P<how>.+))?$"
)
_FINISHED = re.compile(r"exit code 0 after (?P<signal>USR[12]), taken as finished")


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


def stints(lines: Iterable[Line]) -> tuple[Stint, ...]:
    """The history of a job, from the lines of its batch shell; empty for one that was never to go back into the queue."""
    found: dict[tuple[int | None, int], Stint] = {}
    for line in lines:
        match = None if line.host else _LINE.search(line.text)
        if not match:
            continue
        key = (line.element, int(match["number"]))
        when = int(
            datetime.strptime(match["when"], "%Y-%m-%dT%H:%M:%SZ")
            .replace(tzinfo=timezone.utc)
            .timestamp()
        )
        if match["what"] == "begins":
            found[key] = Stint(
                number=key[1], began=when, nodes=match["nodes"] or "", element=line.element
            )
        elif key in found:
            begun = found[key]
            found[key] = Stint(
                number=begun.number,
                began=begun.began,
                nodes=begun.nodes,
                ended=when,
                how=match["how"] or "",
                element=line.element,
            )
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0] or 0, key[1])))


def begins(line: Line) -> bool:
    """Return whether an attempt begins with this line of the batch shell."""
    match = None if line.host else _LINE.search(line.text)
    return match is not None and match["what"] == "begins"


def warning(found: Sequence[Stint]) -> str | None:
    """Return a warning for a job whose ranks ended with 0 right after the signal; None: they did not.

    They may have finished just then. More often a script saves, leaves with 0, and so is never
    continued.
    """
    match = next(filter(None, (_FINISHED.fullmatch(stint.how) for stint in reversed(found))), None)
    if match is None:
        return None
    return (
        f"the ranks ended with 0 right after {match['signal']}, so the job counts as finished and was not queued again; "
        "a script that saves in order to go on must end with another exit code, such as 75"
    )


def told(found: Sequence[Stint]) -> list[str]:
    """The history for people, a line for each attempt: ``1  nid[001-002]  0:58  told to stop by USR1; goes back into the queue``."""
    rows = []
    for index, stint in enumerate(found):
        later = index + 1 < len(found) and found[index + 1].element == stint.element
        how = stint.how or ("stopped by Slurm, which queued it again" if later else "the last one")
        length = f"{human_time(stint.ended - stint.began)}  " if stint.ended else ""
        element = "" if stint.element is None else f"{stint.element}."
        rows.append(f"{element}{stint.number}  {stint.nodes}  {length}{how}")
    return rows
