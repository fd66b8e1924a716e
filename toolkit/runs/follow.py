"""Follow a submitted run: its states, the lines of its logs, and its outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.model.run import JobState, Outcome
from toolkit.runs import logs, records
from toolkit.runs.finish import finish
from toolkit.runs.run import Run

_READ_SECONDS = 0.25  # between two reads of the logs, at least
# Of a core, to look which of a job's logs have grown: a job of 8,000 ranks has as many.
_READ_SHARE = 0.05
SILENT_SECONDS = 300.0  # a training that hangs prints nothing; most others do each few minutes
_ENDS_SECONDS = 20.0  # between two looks which ranks have ended
_PATIENCE = 600.0  # a controller that restarts is back by then
_MISSES = 3  # answers in a row without the job, until it counts as lost


@dataclass(frozen=True)
class Changed:
    """A new state of the job, or a new reason to wait."""

    state: JobState
    expected_start: str = ""


@dataclass(frozen=True)
class Unreachable:
    """Slurm does not answer; until it does, it is asked again."""

    error: SlurmUnreachableError


@dataclass(frozen=True)
class Silent:
    """A running job that has printed nothing for ``SILENT_SECONDS``; it is reported once."""

    seconds: float


@dataclass(frozen=True)
class RanksEnded:
    """Some ranks of a running job ended long ago, and others did not; it is reported once."""

    text: str


Event = Changed | Unreachable | Silent | RanksEnded | logs.Line | Outcome


def _pause(waited: float) -> float:
    """Return the seconds until Slurm is asked again: few for short jobs, more for long ones.

    The controller serves a whole site.
    """
    return min(10.0, max(0.3, waited / 20))


def follow(run: Run, *, until: float = math.inf) -> Iterator[Event]:
    """Yield the events of a job until it has ended; the last is its ``Outcome``, which is recorded.

    Raises:
        JobLostError: Slurm does not know the job any more.
        SlurmUnreachableError: Slurm did not answer for ten minutes.
        TimeoutError: the job has not ended at ``until``, a time of ``time.monotonic``.
    """
    job_id = run.job_id
    tail = logs.Tail(run)
    began = queried = answered = time.monotonic()
    is_silent, misses = False, 0
    state: JobState | None = None
    is_reported = are_ends_reported = False
    checked = began
    while True:
        try:
            new = run.state()
            answered, is_silent = time.monotonic(), False
            misses = misses + 1 if new is None else 0
            if misses >= _MISSES:
                raise JobLostError(
                    f"neither Slurm nor its accounting knows job {job_id} any more",
                    next_step="read what it printed: toolkit logs",
                )
            if new is not None:
                if state is None or (new.state, new.reason) != (state.state, state.reason):
                    start = run.client.expected_start(job_id) if new.state == "PENDING" else ""
                    yield Changed(new, start)
                state = new
                if state.ended:
                    yield from tail.read(last=True)
                    yield finish(run, state)
                    return
        except SlurmUnreachableError as error:
            if time.monotonic() - answered > _PATIENCE:
                raise
            if not is_silent:
                yield Unreachable(error)
            is_silent = True
        if state is not None and state.state == "RUNNING" and not is_reported:
            seconds = logs.silence(run)
            is_reported = seconds > SILENT_SECONDS
            if is_reported:
                yield Silent(seconds)
        is_time = time.monotonic() - checked > _ENDS_SECONDS
        if state is not None and state.state == "RUNNING" and is_time and not are_ends_reported:
            checked = time.monotonic()
            text = records.ended_text(run)
            are_ends_reported = bool(text)
            if text:
                yield RanksEnded(text)
        queried = time.monotonic()
        if queried > until:
            raise TimeoutError(
                f"job {job_id} has not ended in {(queried - began) / 60:.0f} minutes"
            )
        while time.monotonic() - queried < _pause(queried - began):
            time.sleep(max(_READ_SECONDS, tail.cost / _READ_SHARE))
            yield from tail.read()
