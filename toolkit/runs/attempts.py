"""Read the attempts of a requeued job from the log of its batch shell, and the logs of the last.

The script of a job that may go back into the queue says in lines that begin with ``MARK`` when an
attempt begins and ends. ``planning.options`` decides how such a job is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.model.run import JobAttempt
from toolkit.runs import logs
from toolkit.runs.logs import Line
from toolkit.runs.run import Log, Run
from toolkit.units import human_time

MARK = "toolkit: attempt"
# Bytes of all logs together that are held in memory; as Python's objects well below 200 MB.
MOST = 6 << 20
_LEAST = 4 << 10  # bytes of each log, even of one of thousands
_LINE = re.compile(
    re.escape(MARK) + r" (?P<number>\d{1,6}) of at most \d{1,6} (?P<what>begins|ends) "
    r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?: on (?P<nodes>\S+))?(?:: (?P<how>.+))?$"
)
_FINISHED = re.compile(r"exit code 0 after (?P<signal>USR[12]), taken as finished")


class History(NamedTuple):
    """The attempts of a job that may be requeued.

    Attributes:
        attempts: each attempt.
        starts: offset in the batch shell's log of the last attempt, by element (None: no array).
    """

    attempts: tuple[JobAttempt, ...] = ()
    starts: Mapping[int | None, int] = {}

    @property
    def last(self) -> dict[int | None, int]:
        """The number of the last attempt, by element."""
        return {attempt.element: attempt.number for attempt in self.attempts}


def history(run: Run) -> History:
    """Read the attempts of a job from its batch shell's logs; empty if it is never requeued."""
    if run.plan.requeue is None:
        return History()
    return read(
        (offset, logs.line(text, log, run.plan.launch))
        for log in run.logs_of(run.job_id)
        if log.task is None
        for offset, text in logs.find_lines(log, MARK.encode())
    )


def read(marked: Iterable[tuple[int, Line]]) -> History:
    """Read the attempts of a job from lines of its batch shell, each with its offset."""
    attempts = dict[tuple[int, int], JobAttempt]()
    starts = dict[int | None, int]()
    for offset, line in marked:
        match = None if line.host else _LINE.search(line.text)
        if not match:
            continue
        try:
            began = datetime.strptime(match["when"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
        except ValueError:  # a script has printed it
            continue
        when, number = int(began.timestamp()), int(match["number"])
        key = (line.element or 0, number)
        if match["what"] == "begins":
            nodes = match["nodes"] or ""
            attempts[key] = JobAttempt(number=number, began=when, nodes=nodes, element=line.element)
            starts[line.element] = offset
        elif key in attempts:
            attempts[key] = replace(attempts[key], ended=when, how=match["how"] or "")
    return History(tuple(attempts[key] for key in sorted(attempts)), starts)


def warning(attempts: Sequence[JobAttempt]) -> str | None:
    """Return a warning for a job whose ranks ended with 0 right after the signal, else None.

    They may have finished just then. More often a script saves, ends with 0, and so is never
    continued.
    """
    signals = [match["signal"] for each in attempts if (match := _FINISHED.fullmatch(each.how))]
    if not signals:
        return None
    return (
        f"the ranks ended with 0 right after {signals[-1]}, so the job counts as finished and "
        "was not queued again; a script that saves in order to continue "
        "must end with another exit code, such as 75"
    )


def describe(attempts: Sequence[JobAttempt]) -> list[str]:
    """Return a line for each attempt.

    Such as ``1  nid[001-002]  0:58  exit code 1 after USR1; goes back into the queue``.
    """
    rows = []
    for index, attempt in enumerate(attempts):
        later = index + 1 < len(attempts) and attempts[index + 1].element == attempt.element
        how = attempt.how or (
            "stopped by Slurm, which queued it again" if later else "the last one"
        )
        length = f"{human_time(attempt.ended - attempt.began)}  " if attempt.ended else ""
        element = "" if attempt.element is None else f"{attempt.element}."
        rows.append(f"{element}{attempt.number}  {attempt.nodes}  {length}{how}")
    return rows


def excerpt(run: Run, given: Sequence[Log], past: History) -> list[Line]:
    """Return the lines of the last attempt in the given logs, which decide how a job came out.

    Of large logs only the beginning and the end are read.
    """
    hide = logs.secret_filter(run)
    last = past.last
    chosen = [
        log
        for log in given
        if log.task is None or log.attempt == last.get(log.element, log.attempt)
    ]
    offsets = [past.starts.get(log.element, 0) if log.task is None else 0 for log in chosen]
    sizes = [max(0, log.size - offset) for log, offset in zip(chosen, offsets, strict=True)]
    shares = fair_shares(sizes)
    return [
        logs.line(hide(text), log, run.plan.launch)
        for log, offset, share in zip(chosen, offsets, shares, strict=True)
        for text in logs.ends_of(log, share, offset)
    ]


def fair_shares(sizes: Sequence[int], most: int = MOST) -> list[int]:
    """Divide ``most`` bytes among logs; what a small log does not need goes to the larger ones."""
    shares = [0] * len(sizes)
    left = most
    for place, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = max(_LEAST, min(sizes[index], left // (len(sizes) - place)))
        left = max(0, left - min(sizes[index], shares[index]))
    return shares
