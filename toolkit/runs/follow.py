"""Follow a submitted run: its states, its lines while they are written, and how it came out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome
from toolkit.runs import logs
from toolkit.runs.outcome import outcome
from toolkit.runs.points import outcomes
from toolkit.runs.store import Paths
from toolkit.slurm.client import Client
from toolkit.ways import requeue, sweep

_READ_SECONDS = 0.25  # between two looks into the logs
_PATIENCE = 600.0  # a controller that restarts is back by then


@dataclass(frozen=True)
class Changed:
    """The job has another state, or another reason to wait."""

    state: JobState
    expected_start: str = ""


@dataclass(frozen=True)
class Unreachable:
    """Slurm does not answer for now; it is asked again."""

    error: SlurmUnreachableError


Event = Changed | Unreachable | logs.Line | Outcome


def _pause(waited: float) -> float:
    """Seconds until Slurm is asked again: at once for short jobs, rarely for long ones; a controller serves a whole site."""
    return min(10.0, max(0.3, waited / 20))


def follow(client: Client, paths: Paths, plan: Plan, job_id: int) -> Iterator[Event]:
    """Everything that happens to a job until it has ended; the last event is its ``Outcome``, which is also written down.

    Raises:
        JobLostError: Slurm does not know the job any more.
        SlurmUnreachableError: nobody answered for ten minutes.
    """
    tail = logs.Tail(paths, job_id)
    began = asked = heard = time.monotonic()
    state: JobState | None = None
    while True:
        try:
            new = _state(client, paths, job_id)
            heard = time.monotonic()
            if state is None or (new.state, new.reason) != (state.state, state.reason):
                yield Changed(new, client.expected_start(job_id) if new.state == "PENDING" else "")
            state = new
        except SlurmUnreachableError as error:
            if time.monotonic() - heard > _PATIENCE:
                raise
            yield Unreachable(error)
        asked = time.monotonic()
        ended = state is not None and state.ended
        if ended:
            break
        while time.monotonic() - asked < _pause(asked - began):
            time.sleep(_READ_SECONDS)
            yield from _lines(tail, plan)
    yield from _lines(tail, plan, last=True)
    assert state is not None
    yield finish(client, paths, plan, state)


def is_of(state: JobState, paths: Paths) -> bool:
    """Whether a job is this run's. A local cluster that was made anew counts its jobs from 1 again, and another run has the number."""
    return not state.log or state.log.startswith(str(paths.logs.resolve()).split("%")[0])


def _state(client: Client, paths: Paths, job_id: int) -> JobState:
    found = client.jobs([job_id])
    if job_id not in found or not is_of(found[job_id], paths):
        raise JobLostError(
            f"Slurm does not know job {job_id} any more, and keeps no accounts", next_step="the logs tell what it did: toolkit logs"
        )
    return found[job_id]


def _lines(tail: logs.Tail, plan: Plan, *, last: bool = False) -> Iterator[logs.Line]:
    for log, text in tail.read(last=last):
        yield logs.line(text, log, task_is_rank=plan.launch.task_is_rank)


def all_lines(paths: Paths, plan: Plan, job_id: int) -> list[logs.Line]:
    """Every line of every log of a job, as far as it is written; the batch shell's first."""
    return list(_lines(logs.Tail(paths, job_id), plan, last=True))


def finish(client: Client, paths: Paths, plan: Plan, state: JobState) -> Outcome:
    """Work out how an ended job came out, and write it into the run's directory."""
    unwell = client.unwell_nodes(state.nodes) if state.nodes and state.state != "COMPLETED" else {}
    lines = all_lines(paths, plan, state.job_id)
    came_out = outcome(plan, state, requeue.last(lines) if plan.requeue else lines, unwell)
    came_out = replace(came_out, stints=requeue.stints(lines))
    if plan.array:
        came_out = _of_array(client, paths, plan, came_out, lines, state.job_id)
    write_atomically(paths.outcome, to_json(came_out, sort=False))  # results stay in the script's order
    return came_out


def _of_array(client: Client, paths: Paths, plan: Plan, came_out: Outcome, lines: list[logs.Line], job_id: int) -> Outcome:
    """With each element by itself, also in its folder; results that only one of many has printed are nobody's."""
    found = outcomes(plan, lines, client.elements(job_id), ())
    for point in found if plan.points else ():
        folder = paths.points / str(point.number)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "outcome.json", to_json(point, sort=False))
    if not found:
        return came_out
    words = sweep.told(found, "point" if plan.points else "element")
    message = words if came_out.kind in ("ok", "failed") else f"{came_out.message}; {words}"
    return replace(came_out, points=found, results={}, message=message)


def read_plan(paths: Paths) -> Plan:
    """The plan of a run."""
    return read_json(paths.plan, Plan)
