"""Derive how a job came out from the logs of its last attempt, and record it.

The script of a job that may go back into the queue says in lines that begin with ``MARK`` when an
attempt begins and ends. ``planning.options`` decides how such a job is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.errors import ConfigError
from toolkit.launchers.torch import SPAWN
from toolkit.model.plan import Plan
from toolkit.model.run import JobAttempt, JobState, Outcome, PointOutcome, Process
from toolkit.runs import blame, logs, records
from toolkit.runs.logs import Line
from toolkit.runs.outcome import CANCELLED, outcome, results
from toolkit.runs.run import Log, Run
from toolkit.slurm.hostlist import task_ids
from toolkit.units import counted, human_time

MARK = "toolkit: attempt"
# Bytes of all logs together that are held in memory; as Python's objects well below 200 MB.
MOST = 6 << 20
_LEAST = 4 << 10  # bytes of each log, even of one of thousands
_LINE = re.compile(
    re.escape(MARK) + r" (?P<number>\d{1,6}) of at most \d{1,6} (?P<what>begins|ends) "
    r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?: on (?P<nodes>\S+))?(?:: (?P<how>.+))?$"
)
_MOST_ELEMENTS = 100_000  # of an array


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


def finish(run: Run, state: JobState) -> Outcome:
    """Derive the outcome of a job that has ended, and write it into a run of the caller.

    Where it cannot be written, the next command derives it again.
    """
    plan, past = run.plan, history(run)
    processes = records.read(run) if plan.reports else []
    if plan.array:
        came_out = _of_array(run, state, past, processes)
    else:
        last = records.latest(processes, plan, past.last.get(None))
        came_out = _of_job(run, state, run.logs_of(run.job_id), past, last)
        if came_out.kind == "ok":
            text = records.apart_text(last, plan)
            came_out = replace(came_out, message=text, kind="apart") if text else came_out
            came_out = _with_children(came_out, plan, last)
    run.outcome = replace(came_out, attempts=past.attempts)
    run.keep("outcome.json", run.outcome)
    return run.outcome


def _with_children(came_out: Outcome, plan: Plan, processes: Sequence[Process]) -> Outcome:
    """Return the outcome of a script that exits with 0 although ranks failed that it forked."""
    failed = [each for each in processes if any(record.kind == "child" for record in each.records)]
    failure = blame.first(plan.launch.launcher, failed, ())
    if failure is None or plan.launch.launcher != SPAWN.name:
        return came_out
    text = f"{failure.text}; it exited with 0 all the same"
    return replace(came_out, kind="failed", failure=failure, message=text)


def _of_job(
    run: Run,
    state: JobState,
    given: Sequence[Log],
    past: History,
    processes: Sequence[Process],
) -> Outcome:
    lines = excerpt(run, given, past)
    may_be_lost = state.nodes and state.state in ("NODE_FAIL", "FAILED")
    unhealthy = run.client.unhealthy_nodes(state.nodes, state.start) if may_be_lost else {}
    own = [log for log in given if log.attempt == past.last.get(log.element, log.attempt)]
    return outcome(run.plan, state, lines, unhealthy, processes, () if run.plan.array else own)


def _of_array(run: Run, state: JobState, past: History, processes: Sequence[Process]) -> Outcome:
    """Derive the outcome of each element of an array, and of the array from the first failure."""
    states = run.client.elements(state.job_id)
    points = read_elements(run, states, past, processes, ended=True)
    for point in points if run.plan.points else ():
        run.keep(f"points/{point.number}/outcome.json", point)
    first = next(
        (point.number for point in points if point.exit_code != 0),
        points[0].number if points else None,
    )
    own = records.by_element(processes).get(first, [])
    last = records.latest(own, run.plan, past.last.get(first))
    came_out = _of_job(run, state, _logs_by_element(run).get(first, []), past, last)
    counts = summary(points, "point" if run.plan.points else "element")
    message = counts if came_out.kind in ("ok", "failed") else f"{came_out.message}; {counts}"
    return replace(came_out, points=points, results={}, message=message)


def read_elements(
    run: Run,
    states: Mapping[int, JobState],
    past: History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> tuple[PointOutcome, ...]:
    """Read the outcome of each element; only one element's logs are in memory at a time.

    Args:
        run: the array.
        states: Slurm's states by element, as far as they are known.
        past: the attempts of each element.
        processes: of the job, with their failures.
        ended: the array has ended: an element without a state never started, or is forgotten.
    """
    logs_of, processes_of = (
        _logs_by_element(run),
        records.by_element(processes),
    )
    numbers = sorted({*states, *task_ids(dict(run.plan.directives).get("array", ""))})
    if len(numbers) > _MOST_ELEMENTS:
        raise ConfigError(
            f"the array has {len(numbers)} elements; at most {_MOST_ELEMENTS} are read",
            place=str(run.directory / "plan.json"),
            next_step="ask Slurm: sacct",
        )
    return tuple(
        _point(
            run,
            number,
            states.get(number),
            logs_of.get(number, ()),
            past,
            processes_of.get(number, ()),
            ended=ended,
        )
        for number in numbers
    )


def _logs_by_element(run: Run) -> dict[int | None, list[Log]]:
    """Group the logs of an array by element, as they are ordered."""
    grouped = groupby(run.logs_of(run.job_id), lambda log: log.element)
    return {element: list(group) for element, group in grouped}


def _point(
    run: Run,
    number: int,
    state: JobState | None,
    given: Sequence[Log],
    past: History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> PointOutcome:
    has_ended = state is not None and state.ended
    if not has_ended and not ended:
        return PointOutcome(number=number, state=state.state if state else "PENDING")
    if not has_ended and not given:
        return PointOutcome(
            number=number, state="CANCELLED", exit_code=CANCELLED, message="it never started"
        )
    lines = excerpt(run, given, past)
    if state is None or not state.ended:
        return PointOutcome(
            number=number,
            state="UNKNOWN",
            results=results(lines),
            message="Slurm no longer knows how it ended",
        )
    last = records.latest(processes, run.plan, past.last.get(number))
    came_out = outcome(run.plan, state, lines, {}, last)
    return PointOutcome(
        number=number,
        state=came_out.state,
        exit_code=came_out.exit_code,
        seconds=came_out.seconds,
        results=came_out.results,
        message=came_out.message,
    )


def failed_points(outcomes: Sequence[PointOutcome]) -> list[int]:
    """Return the numbers of the points that have ended and did not succeed."""
    return [point.number for point in outcomes if point.exit_code not in (0, None)]


def summary(outcomes: Sequence[PointOutcome], noun: str) -> str:
    """Return a line such as ``4 points: 3 done, 1 failed (2)``.

    Args:
        outcomes: of all elements.
        noun: ``point``, or ``element`` for an array that is not a sweep.
    """
    failed = failed_points(outcomes)
    unknown = [point.number for point in outcomes if point.state == "UNKNOWN"]
    waiting = sum(point.exit_code is None for point in outcomes) - len(unknown)
    parts = [f"{len(outcomes) - len(failed) - waiting - len(unknown)} done"]
    parts += [f"{waiting} to come"] if waiting else []
    parts += [f"{len(unknown)} unknown ({','.join(map(str, unknown))})"] if unknown else []
    parts += [f"{len(failed)} failed ({','.join(map(str, failed))})"] if failed else []
    return f"{counted(len(outcomes), noun)}: {', '.join(parts)}"
