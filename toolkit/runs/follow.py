"""Follow a submitted run: its states, its lines while they are written, and how it came out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.report import Report
from toolkit.model.run import JobState, Outcome
from toolkit.planning import arrays as sweep
from toolkit.records.store import Paths
from toolkit.runs import excerpt, logs, once
from toolkit.runs import points as elements
from toolkit.runs.outcome import mentions_node_failure, outcome
from toolkit.slurm.client import Client

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
    """Yield everything that happens to a job until it has ended; the last event is its ``Outcome``, which is also written down.

    Raises:
        JobLostError: Slurm does not know the job any more.
        SlurmUnreachableError: Slurm did not answer for ten minutes.
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
            if state.ended:
                yield from _lines(tail, plan, last=True)
                yield finish(client, paths, plan, state)
                return
        except SlurmUnreachableError as error:
            if time.monotonic() - heard > _PATIENCE:
                raise
            yield Unreachable(error)
        asked = time.monotonic()
        while time.monotonic() - asked < _pause(asked - began):
            time.sleep(_READ_SECONDS)
            yield from _lines(tail, plan)


def is_of(state: JobState, paths: Paths, mark: str) -> bool:
    """Return whether a job is this run's: a local cluster that was made anew counts its jobs from 1 again.

    The mark tells. For a job without one, the directories of the logs are compared as files, since
    ``runs`` may be a symbolic link.
    """
    if mark and state.mark:
        return mark == state.mark
    if not state.log:
        return True
    own = os.path.realpath(paths.logs)
    return own in {
        os.path.realpath(Path(name).parent) for name in (state.log, state.log.replace("%%", "%"))
    }


def _state(client: Client, paths: Paths, job_id: int) -> JobState:
    submission = paths.read_submission()
    if submission is not None and submission.is_doubtful:
        jobs = client.snapshot([job_id])
        states = jobs.states
        once.cancel_duplicates(client, submission, jobs.marks.get(submission.mark, ()))
    else:
        states = client.jobs([job_id])
    if job_id not in states or not is_of(
        states[job_id], paths, submission.mark if submission else ""
    ):
        raise JobLostError(
            f"Slurm does not know job {job_id} any more, and keeps no accounts",
            next_step="the logs tell what it did: toolkit logs",
        )
    return states[job_id]


def _lines(tail: logs.Tail, plan: Plan, *, last: bool = False) -> Iterator[logs.Line]:
    for log, text in tail.read(last=last):
        yield logs.line(text, log, plan.launch)


def all_lines(paths: Paths, plan: Plan, job_id: int) -> Iterator[logs.Line]:
    """Yield every line of every log of a job, as far as it is written; the batch shell's first."""
    return _lines(logs.Tail(paths, job_id), plan, last=True)


def finish(client: Client, paths: Paths, plan: Plan, state: JobState) -> Outcome:
    """Derive how an ended job came out, and write it into the run's directory."""
    past = excerpt.history(paths, plan, state.job_id)
    if plan.array:
        came_out = _of_array(client, paths, plan, state, past)
    else:
        lines = excerpt.of_logs(paths, plan, paths.logs_of(state.job_id), past).lines
        came_out = _of_job(
            client, plan, state, lines, excerpt.reports_of(paths, state.job_id, None, past)
        )
    came_out = replace(came_out, stints=past.stints)
    write_atomically(
        paths.outcome, to_json(came_out, sort=False)
    )  # results stay in the script's order
    once.release_claim(paths)
    return came_out


def _of_job(
    client: Client, plan: Plan, state: JobState, lines: list[logs.Line], found: tuple[Report, ...]
) -> Outcome:
    asked = state.nodes and (
        state.state == "NODE_FAIL" or (state.state == "FAILED" and mentions_node_failure(lines))
    )
    return outcome(
        plan, state, lines, client.unhealthy_nodes(state.nodes, state.start) if asked else {}, found
    )


def _of_array(
    client: Client, paths: Paths, plan: Plan, state: JobState, past: excerpt.History
) -> Outcome:
    """Derive the outcome of an array from its first element that failed, and of each element by itself, also in its folder."""
    states = client.elements(state.job_id)
    points = elements.read(paths, plan, state.job_id, states, past, ended=True)
    for point in points if plan.points else ():
        folder = paths.points / str(point.number)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "outcome.json", to_json(point, sort=False))
    first = next(
        (point.number for point in points if point.exit_code != 0),
        points[0].number if points else None,
    )
    logs_of_first = elements.by_element(paths, state.job_id).get(first, [])
    lines = excerpt.of_logs(paths, plan, logs_of_first, past).lines
    came_out = _of_job(
        client, plan, state, lines, excerpt.reports_of(paths, state.job_id, first, past)
    )
    words = sweep.told(points, "point" if plan.points else "element")
    message = words if came_out.kind in ("ok", "failed") else f"{came_out.message}; {words}"
    return replace(came_out, points=points, results={}, message=message)


def read_plan(paths: Paths) -> Plan:
    """The plan of a run."""
    return read_json(paths.plan, Plan)
