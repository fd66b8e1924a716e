"""Follow a submitted run: its states, the lines of its logs, and its outcome."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome
from toolkit.records.store import Paths
from toolkit.runs import logs, once, parts
from toolkit.runs.finish import finish
from toolkit.slurm.client import Client

_READ_SECONDS = 0.25  # between two reads of the logs, at least
# Of a core, to look which of a job's logs have grown: a job of 8,000 ranks has as many.
_READ_SHARE = 0.05
_PATIENCE = 600.0  # a controller that restarts is back by then


@dataclass(frozen=True)
class Changed:
    """A new state of the job, or a new reason to wait."""

    state: JobState
    expected_start: str = ""


@dataclass(frozen=True)
class Unreachable:
    """A query that Slurm did not answer; it is repeated."""

    error: SlurmUnreachableError


Event = Changed | Unreachable | logs.Line | Outcome


def _pause(waited: float) -> float:
    """Return the seconds until Slurm is asked again: few for short jobs, more for long ones.

    The controller serves a whole site.
    """
    return min(10.0, max(0.3, waited / 20))


def follow(
    client: Client, paths: Paths, plan: Plan, job_id: int, *, until: float = math.inf
) -> Iterator[Event]:
    """Yield the events of a job until it has ended; the last is its ``Outcome``, which is recorded.

    Raises:
        JobLostError: Slurm does not know the job any more.
        SlurmUnreachableError: Slurm did not answer for ten minutes.
        TimeoutError: the job has not ended at ``until``, a time of ``time.monotonic``.
    """
    tail = logs.Tail(paths, job_id)
    began = queried = answered = time.monotonic()
    state: JobState | None = None
    while True:
        try:
            new = _state(client, paths, job_id)
            answered = time.monotonic()
            if state is None or (new.state, new.reason) != (state.state, state.reason):
                yield Changed(new, client.expected_start(job_id) if new.state == "PENDING" else "")
            state = new
            if state.ended:
                yield from _lines(tail, plan, last=True)
                yield finish(client, paths, plan, state)
                return
        except SlurmUnreachableError as error:
            if time.monotonic() - answered > _PATIENCE:
                raise
            yield Unreachable(error)
        queried = time.monotonic()
        if queried > until:
            raise TimeoutError(
                f"job {job_id} has not ended in {(queried - began) / 60:.0f} minutes"
            )
        while time.monotonic() - queried < _pause(queried - began):
            time.sleep(max(_READ_SECONDS, tail.cost / _READ_SHARE))
            yield from _lines(tail, plan)


def is_of(state: JobState, paths: Paths, mark: str) -> bool:
    """Return whether a job is this run's, by its mark.

    A new local cluster counts its jobs from 1 again. For a job without a mark, the directories of
    the logs are compared as files, since ``runs`` may be a symbolic link.
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
    if (ended := parts.ended_state(paths, job_id)) is not None:
        return ended
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
            next_step="read what it printed: toolkit logs",
        )
    return parts.own_state(paths, states[job_id])


def _lines(tail: logs.Tail, plan: Plan, *, last: bool = False) -> Iterator[logs.Line]:
    for log, text in tail.read(last=last):
        yield logs.line(text, log, plan.launch)


def all_lines(paths: Paths, plan: Plan, job_id: int) -> Iterator[logs.Line]:
    """Yield every line in the logs of a job so far, the batch shell's first."""
    return _lines(logs.Tail(paths, job_id), plan, last=True)
