"""Read the attempts of a requeued job from the log of its batch shell. Pure.

The script of a job that may go back into the queue says in lines that begin with ``MARK`` when an
attempt begins and ends. ``planning.options`` decides how such a job is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from toolkit.model.run import JobAttempt
from toolkit.runs.logs import Line
from toolkit.units import human_time

MARK = "toolkit: attempt"
_LINE = re.compile(
    re.escape(MARK) + r" (?P<number>\d{1,6}) of at most \d{1,6} (?P<what>begins|ends) "
    r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?: on (?P<nodes>\S+))?(?:: (?P<how>.+))?$"
)
_FINISHED = re.compile(r"exit code 0 after (?P<signal>USR[12]), taken as finished")


def read_attempts(lines: Iterable[Line]) -> tuple[JobAttempt, ...]:
    """Return the attempts of a job from lines of its batch shell; empty if it is not requeued."""
    attempts: dict[tuple[int | None, int], JobAttempt] = {}
    for line in lines:
        match = None if line.host else _LINE.search(line.text)
        if not match:
            continue
        key = (line.element, int(match["number"]))
        try:
            began = datetime.strptime(match["when"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
        except ValueError:  # a script has printed it
            continue
        when = int(began.timestamp())
        if match["what"] == "begins":
            attempts[key] = JobAttempt(
                number=key[1], began=when, nodes=match["nodes"] or "", element=line.element
            )
        elif key in attempts:
            begun = attempts[key]
            attempts[key] = JobAttempt(
                number=begun.number,
                began=begun.began,
                nodes=begun.nodes,
                ended=when,
                how=match["how"] or "",
                element=line.element,
            )
    return tuple(attempts[key] for key in sorted(attempts, key=lambda key: (key[0] or 0, key[1])))


def begins(line: Line) -> bool:
    """Return whether an attempt begins with this line of the batch shell."""
    match = None if line.host else _LINE.search(line.text)
    return match is not None and match["what"] == "begins"


def warning(attempts: Sequence[JobAttempt]) -> str | None:
    """Return a warning for a job whose ranks ended with 0 right after the signal, else None.

    They may have finished just then. More often a script saves, ends with 0, and so is never
    continued.
    """
    match = next(
        filter(None, (_FINISHED.fullmatch(attempt.how) for attempt in reversed(attempts))), None
    )
    if match is None:
        return None
    return (
        f"the ranks ended with 0 right after {match['signal']}, so the job counts as finished and "
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
