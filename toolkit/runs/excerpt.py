"""Read what decides how a job came out: its logs and the records of its failing processes.

Of large logs only the beginning and the end are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from toolkit.files import open_regular
from toolkit.model.plan import Plan
from toolkit.model.run import JobAttempt, Report
from toolkit.runs import attempts, logs
from toolkit.runs.logs import Line
from toolkit.runs.store import Log, Paths

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


def history(paths: Paths, plan: Plan, job_id: int) -> History:
    """Read the attempts of a job from its batch shell's logs; empty if it is never requeued."""
    if plan.requeue is None:
        return History()
    batch = [log for log in paths.logs_of(job_id) if log.task is None]
    marked = [
        (offset, logs.line(text, log, plan.launch))
        for log in batch
        for offset, text in logs.find_lines(log, attempts.MARK.encode())
    ]
    starts = {line.element: offset for offset, line in marked if attempts.begins(line)}
    return History(attempts.read_attempts(line for _, line in marked), starts)


def of_run(paths: Paths, plan: Plan, job_id: int) -> Excerpt:
    """Read the logs of a job's last attempt."""
    past = history(paths, plan, job_id)
    return of_logs(paths, plan, paths.logs_of(job_id), past)


def of_logs(paths: Paths, plan: Plan, given: Sequence[Log], past: History) -> Excerpt:
    """Read what belongs to the last attempt in the given logs."""
    hide = logs.secret_filter(paths)
    last = {attempt.element: attempt.number for attempt in past.attempts}
    chosen = [
        log
        for log in given
        if log.task is None or log.attempt == last.get(log.element, log.attempt)
    ]
    offsets = [past.starts.get(log.element, 0) if log.task is None else 0 for log in chosen]
    sizes = [max(0, log.size - offset) for log, offset in zip(chosen, offsets, strict=True)]
    shares = fair_shares(sizes)
    lines = [
        logs.line(hide(text), log, plan.launch)
        for log, offset, share in zip(chosen, offsets, shares, strict=True)
        for text in logs.ends_of(log, share, offset)
    ]
    return Excerpt(lines, len(chosen), sum(sizes), sum(map(min, sizes, shares)))


def reports_of(paths: Paths, job_id: int, element: int | None, past: History) -> tuple[Report, ...]:
    """Read the records of failing processes of a job's last attempt, without values of secrets."""
    last = next(
        (attempt.number for attempt in reversed(past.attempts) if attempt.element == element), None
    )
    hide = logs.secret_filter(paths)
    return tuple(
        replace(
            report,
            errors=tuple(
                replace(error, message=hide(error.message), source=hide(error.source))
                for error in report.errors
            ),
        )
        for report in read_reports(paths, job_id, element, last)
    )


def fair_shares(sizes: Sequence[int], most: int = MOST) -> list[int]:
    """Divide ``most`` bytes among logs; what a small log does not need goes to the larger ones."""
    shares = [0] * len(sizes)
    left = most
    for place, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = max(_LEAST, min(sizes[index], left // (len(sizes) - place)))
        left = max(0, left - min(sizes[index], shares[index]))
    return shares


_MOST_RECORDS, _MOST_BYTES = 64 << 20, 1 << 18  # bytes of all records, and of one


def read_reports(
    paths: Paths, job_id: int, element: int | None = None, attempt: int | None = None
) -> tuple[Report, ...]:
    """Return the records of a job, the earliest first.

    Args:
        paths: of the run.
        job_id: Slurm's number.
        element: of a job array; None: not an array.
        attempt: of a requeued job, from 1; None: the last attempt that has written a record.
    """
    own = [report for report in _decoded(paths) if is_of(report, job_id, element)]
    last = max((attempt_of(report) for report in own), default=1) if attempt is None else attempt
    return tuple(
        sorted(
            (report for report in own if attempt_of(report) == last),
            key=lambda report: report.time_ns,
        )
    )


def is_of(report: Report, job_id: int, element: int | None) -> bool:
    """Return whether a process belongs to a job, or to an element of a job array."""
    env = report.env
    if element is not None and env.get("SLURM_ARRAY_TASK_ID") != str(element):
        return False
    # A job that joins an elastic job has its own number; the name of their rendezvous begins with
    # the number of the other.
    numbers = (
        env.get("SLURM_ARRAY_JOB_ID"),
        env.get("SLURM_JOB_ID"),
        env.get("TORCHELASTIC_RUN_ID", "").partition("-")[0],
    )
    return str(job_id) in numbers


def attempt_of(report: Report) -> int:
    """Return the attempt of a requeued job that a process belongs to, from 1."""
    count = report.env.get("SLURM_RESTART_COUNT", "")
    return int(count) + 1 if count.isascii() and count.isdecimal() and len(count) < 9 else 1


def _decoded(paths: Paths) -> Iterator[Report]:
    """Yield the readable records, those that were written first before others.

    A process may have been killed while it wrote one.
    """
    left = _MOST_RECORDS
    with suppress(OSError):  # the folder is its owner's alone
        files = [paths.reports / name for name in paths.names(paths.reports)]
        for path in sorted(files, key=lambda path: path.lstat().st_mtime_ns):
            with suppress(OSError, ValueError, msgspec.DecodeError):
                if path.suffix == ".json":
                    with open_regular(path, below=paths.directory) as file:
                        data = file.read(min(left, _MOST_BYTES))
                    left -= len(data)
                    yield msgspec.json.decode(data, type=Report)
