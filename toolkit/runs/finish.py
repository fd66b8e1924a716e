"""Derive and record the outcome of a job that has ended, and of each element of a job array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from toolkit.errors import ConfigError
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome, PointOutcome, Process
from toolkit.runs import excerpt, records, standings
from toolkit.runs.logs import Line
from toolkit.runs.outcome import CANCELLED, mentions_node_failure, outcome, results
from toolkit.runs.points import summary
from toolkit.runs.store import Log, Paths
from toolkit.slurm import queue
from toolkit.slurm.client import Client

_MOST_ELEMENTS = 100_000  # of an array


def finish(client: Client, paths: Paths, plan: Plan, state: JobState) -> Outcome:
    """Derive the outcome of a job that has ended, and write it into a run of the caller.

    Where it cannot be written, the next command derives it again.
    """
    past = excerpt.history(paths, plan, state.job_id)
    processes = records.read(paths, plan, state.job_id) if plan.reports else []
    if plan.array:
        came_out = _of_array(client, paths, plan, state, past, processes)
    else:
        all_logs = paths.logs_of(state.job_id)
        lines = excerpt.of_logs(paths, plan, all_logs, past).lines
        last = records.latest(processes, plan, past.last.get(None))
        own_logs = [log for log in all_logs if log.attempt == past.last.get(None, log.attempt)]
        came_out = _of_job(client, plan, state, lines, last, own_logs)
        text = standings.apart_text(last, plan) if came_out.kind == "ok" else ""
        came_out = replace(came_out, message=text, kind="apart") if text else came_out
    came_out = replace(came_out, attempts=past.attempts)
    paths.keep(paths.outcome, came_out)
    return came_out


def _of_job(
    client: Client,
    plan: Plan,
    state: JobState,
    lines: Sequence[Line],
    processes: Sequence[Process],
    logs: Sequence[Log] = (),
) -> Outcome:
    may_have_lost_nodes = state.nodes and (
        state.state == "NODE_FAIL" or (state.state == "FAILED" and mentions_node_failure(lines))
    )
    unhealthy = client.unhealthy_nodes(state.nodes, state.start) if may_have_lost_nodes else {}
    return outcome(plan, state, lines, unhealthy, processes, logs)


def _of_array(
    client: Client,
    paths: Paths,
    plan: Plan,
    state: JobState,
    past: excerpt.History,
    processes: Sequence[Process],
) -> Outcome:
    """Derive the outcome of each element of an array, and of the array from the first failure."""
    states = client.elements(state.job_id)
    points = read_elements(paths, plan, state.job_id, states, past, processes, ended=True)
    for point in points if plan.points else ():
        paths.keep(paths.points / str(point.number) / "outcome.json", point)
    first = next(
        (point.number for point in points if point.exit_code != 0),
        points[0].number if points else None,
    )
    logs_of_first = _logs_by_element(paths, state.job_id).get(first, [])
    lines = excerpt.of_logs(paths, plan, logs_of_first, past).lines
    own = records.by_element(processes).get(first, [])
    last = records.latest(own, plan, past.last.get(first))
    came_out = _of_job(client, plan, state, lines, last)
    counts = summary(points, "point" if plan.points else "element")
    message = counts if came_out.kind in ("ok", "failed") else f"{came_out.message}; {counts}"
    return replace(came_out, points=points, results={}, message=message)


def read_elements(
    paths: Paths,
    plan: Plan,
    job_id: int,
    states: Mapping[int, JobState],
    past: excerpt.History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> tuple[PointOutcome, ...]:
    """Read the outcome of each element; only one element's logs are in memory at a time.

    Args:
        paths: of the run.
        plan: of the run.
        job_id: Slurm's number of the array.
        states: Slurm's states by element, as far as they are known.
        past: the attempts of each element.
        processes: of the job, with their failures.
        ended: the array has ended: an element without a state never started, or is forgotten.
    """
    logs_of, processes_of = _logs_by_element(paths, job_id), records.by_element(processes)
    numbers = sorted({*states, *queue.task_ids(dict(plan.directives).get("array", ""))})
    if len(numbers) > _MOST_ELEMENTS:
        raise ConfigError(
            f"the array has {len(numbers)} elements; at most {_MOST_ELEMENTS} are read",
            place=str(paths.plan),
            next_step="ask Slurm: sacct",
        )
    return tuple(
        _point(
            paths,
            plan,
            number,
            states.get(number),
            logs_of.get(number, ()),
            past,
            processes_of.get(number, ()),
            ended=ended,
        )
        for number in numbers
    )


def _logs_by_element(paths: Paths, job_id: int) -> dict[int | None, list[Log]]:
    """Group the logs of an array by element."""
    by_element: dict[int | None, list[Log]] = {}
    for log in paths.logs_of(job_id):
        by_element.setdefault(log.element, []).append(log)
    return by_element


def _point(
    paths: Paths,
    plan: Plan,
    number: int,
    state: JobState | None,
    logs: Sequence[Log],
    past: excerpt.History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> PointOutcome:
    if state is not None and state.ended:
        last = records.latest(processes, plan, past.last.get(number))
        came_out = outcome(plan, state, excerpt.of_logs(paths, plan, logs, past).lines, {}, last)
        return PointOutcome(
            number=number,
            state=came_out.state,
            exit_code=came_out.exit_code,
            seconds=came_out.seconds,
            results=came_out.results,
            message=came_out.message,
        )
    if not ended:
        return PointOutcome(number=number, state=state.state if state else "PENDING")
    if not logs:
        return PointOutcome(
            number=number, state="CANCELLED", exit_code=CANCELLED, message="it never started"
        )
    printed = excerpt.of_logs(paths, plan, logs, past).lines
    return PointOutcome(
        number=number,
        state="UNKNOWN",
        results=results(printed),
        message="Slurm no longer knows how it ended",
    )
