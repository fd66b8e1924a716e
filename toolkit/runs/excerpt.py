"""What is read of a job's logs to decide how it came out: all of it, or both ends of each log where they are large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.model.plan import Plan
from toolkit.model.report import Report
from toolkit.model.ways import Stint
from toolkit.records.store import Log, Paths
from toolkit.runs import attempts, logs, reports
from toolkit.runs.lines import ends, find
from toolkit.runs.logs import Line

MOST = (
    12 << 20
)  # bytes of all logs together that are held in memory; as Python's objects well below 200 MB
_LEAST = 4 << 10  # bytes of each log, also of one of thousands


class Excerpt(NamedTuple):
    """Lines of some logs.

    Attributes:
        lines: the batch shell's first, then by task.
        logs: how many logs there are.
        size: bytes of these logs.
        read: of these, how many may have been read: less than ``size`` where logs are large.
    """

    lines: list[Line]
    logs: int = 0
    size: int = 0
    read: int = 0


class History(NamedTuple):
    """The attempts of a job that may be requeued.

    Attributes:
        stints: each attempt.
        starts: element of the array (None: no array) -> offset in the batch shell's log at which its last attempt begins.
    """

    stints: tuple[Stint, ...] = ()
    starts: Mapping[int | None, int] = {}


def history(paths: Paths, plan: Plan, job_id: int) -> History:
    """Read the attempts of a job from the batch shell's logs; empty for a job that is never requeued."""
    if plan.requeue is None:
        return History()
    batch = [log for log in paths.logs_of(job_id) if log.task is None]
    found = [
        (offset, logs.line(text, log, plan.launch))
        for log in batch
        for offset, text in find(log.path, attempts.MARK.encode())
    ]
    starts = {line.element: offset for offset, line in found if attempts.begins(line)}
    return History(attempts.stints(line for _, line in found), starts)


def of_run(paths: Paths, plan: Plan, job_id: int) -> Excerpt:
    """Read the logs of a job's last attempt."""
    past = history(paths, plan, job_id)
    return of_logs(paths, plan, paths.logs_of(job_id), past)


def of_logs(paths: Paths, plan: Plan, given: Sequence[Log], past: History) -> Excerpt:
    """Read those of the given logs, and of the batch shell's the part, that belong to the last attempt."""
    hide = logs.secret_filter(paths)
    last = {stint.element: stint.number for stint in past.stints}
    chosen = [
        log
        for log in given
        if log.task is None or log.attempt == last.get(log.element, log.attempt)
    ]
    offsets = [past.starts.get(log.element, 0) if log.task is None else 0 for log in chosen]
    sizes = [
        max(0, log.path.stat().st_size - offset)
        for log, offset in zip(chosen, offsets, strict=True)
    ]
    shares = fair_shares(sizes)
    lines = [
        logs.line(hide(text), log, plan.launch)
        for log, offset, share in zip(chosen, offsets, shares, strict=True)
        for text in ends(log.path, share, offset)
    ]
    return Excerpt(lines, len(chosen), sum(sizes), sum(map(min, sizes, shares)))


def reports_of(paths: Paths, job_id: int, element: int | None, past: History) -> tuple[Report, ...]:
    """Read the records that failing processes of a job's last attempt have written, without the values of secrets."""
    last = next((stint.number for stint in reversed(past.stints) if stint.element == element), None)
    hide = logs.secret_filter(paths)
    return tuple(
        replace(
            report,
            errors=tuple(
                replace(error, message=hide(error.message), source=hide(error.source))
                for error in report.errors
            ),
        )
        for report in reports.read(paths, job_id, element, last)
    )


def fair_shares(sizes: Sequence[int], most: int = MOST) -> list[int]:
    """Divide ``most`` bytes among logs of these sizes: what a small one does not need goes to the larger ones. Pure."""
    shares = [0] * len(sizes)
    left = most
    for place, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = max(_LEAST, min(sizes[index], left // (len(sizes) - place)))
        left = max(0, left - min(sizes[index], shares[index]))
    return shares
