"""Read the logs of a job, which decide how it came out.

Of large logs only the beginning and the end are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toolkit.model.run import JobAttempt
from toolkit.runs import attempts, logs
from toolkit.runs.logs import Line
from toolkit.runs.run import Log, Run

# Bytes of all logs together that are held in memory; as Python's objects well below 200 MB.
MOST = 6 << 20
_LEAST = 4 << 10  # bytes of each log, even of one of thousands


class Excerpt(NamedTuple):
    """Lines of some logs.

    Attributes:
        lines: the batch shell's first, then by task.
        logs: number of logs.
        size: bytes of these logs.
        read: bytes of these that may have been read: fewer than ``size`` if logs are large.
    """

    lines: list[Line]
    logs: int = 0
    size: int = 0
    read: int = 0


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
    batch = [log for log in run.logs_of(run.job_id) if log.task is None]
    marked = [
        (offset, logs.line(text, log, run.plan.launch))
        for log in batch
        for offset, text in logs.find_lines(log, attempts.MARK.encode())
    ]
    starts = {line.element: offset for offset, line in marked if attempts.begins(line)}
    return History(attempts.read_attempts(line for _, line in marked), starts)


def of_run(run: Run) -> Excerpt:
    """Read the logs of a job's last attempt."""
    return of_logs(run, run.logs_of(run.job_id), history(run))


def of_logs(run: Run, given: Sequence[Log], past: History) -> Excerpt:
    """Read what belongs to the last attempt in the given logs."""
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
    lines = [
        logs.line(hide(text), log, run.plan.launch)
        for log, offset, share in zip(chosen, offsets, shares, strict=True)
        for text in logs.ends_of(log, share, offset)
    ]
    return Excerpt(lines, len(chosen), sum(sizes), sum(map(min, sizes, shares)))


def fair_shares(sizes: Sequence[int], most: int = MOST) -> list[int]:
    """Divide ``most`` bytes among logs; what a small log does not need goes to the larger ones."""
    shares = [0] * len(sizes)
    left = most
    for place, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = max(_LEAST, min(sizes[index], left // (len(sizes) - place)))
        left = max(0, left - min(sizes[index], shares[index]))
    return shares
