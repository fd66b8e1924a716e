"""Derive and record the outcome of a job that has ended, and of each element of a job array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from toolkit.errors import ConfigError
from toolkit.model.run import JobState, Outcome, PointOutcome, Process
from toolkit.runs import records
from toolkit.runs.attempts import History, excerpt, history
from toolkit.runs.outcome import CANCELLED, outcome, results
from toolkit.runs.run import Log, Run
from toolkit.slurm import queue
from toolkit.units import counted

_MOST_ELEMENTS = 100_000  # of an array


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
        text = records.apart_text(last, plan) if came_out.kind == "ok" else ""
        came_out = replace(came_out, message=text, kind="apart") if text else came_out
    run.outcome = replace(came_out, attempts=past.attempts)
    run.keep("outcome.json", run.outcome)
    return run.outcome


def _of_job(
    run: Run,
    state: JobState,
    logs: Sequence[Log],
    past: History,
    processes: Sequence[Process],
) -> Outcome:
    lines = excerpt(run, logs, past)
    may_be_lost = state.nodes and state.state in ("NODE_FAIL", "FAILED")
    unhealthy = run.client.unhealthy_nodes(state.nodes, state.start) if may_be_lost else {}
    own = [log for log in logs if log.attempt == past.last.get(log.element, log.attempt)]
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
    numbers = sorted({*states, *queue.task_ids(dict(run.plan.directives).get("array", ""))})
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
    logs = groupby(run.logs_of(run.job_id), lambda log: log.element)
    return {element: list(group) for element, group in logs}


def _point(
    run: Run,
    number: int,
    state: JobState | None,
    logs: Sequence[Log],
    past: History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> PointOutcome:
    has_ended = state is not None and state.ended
    if not has_ended and not ended:
        return PointOutcome(number=number, state=state.state if state else "PENDING")
    if not has_ended and not logs:
        return PointOutcome(
            number=number, state="CANCELLED", exit_code=CANCELLED, message="it never started"
        )
    lines = excerpt(run, logs, past)
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
