"""Follow a submitted run: its states, the lines of its logs, and its outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.model.run import JobState, Outcome
from toolkit.runs import logs, records, stacks
from toolkit.runs.outcome import finish
from toolkit.runs.run import Run
from toolkit.units import counted

_READ_SECONDS = 0.25  # between two reads of the logs, at least
# Of a core, to look which of a job's logs have grown: a job of 8,000 ranks has as many.
_READ_SHARE = 0.05
_SILENT_SECONDS = 300.0  # a training that hangs prints nothing; most others do each few minutes
_CHECK_SECONDS = 20.0  # between two checks whether ranks hang
_PATIENCE = 600.0  # a controller that restarts is back by then
_MISSES = 3  # answers in a row without the job, until it counts as lost


class Changed(NamedTuple):
    """A new state of the job, or a new reason to wait."""

    state: JobState
    expected_start: str = ""


class Notice(NamedTuple):
    """A text for the user, reported once: Slurm does not answer, or the ranks may hang."""

    subject: str
    text: str


Event = Changed | Notice | logs.Line | Outcome


def silence_text(run: Run) -> str:
    """Return what to type if a running run has printed nothing for a while; else nothing."""
    seconds = logs.silence(run)
    if seconds <= _SILENT_SECONDS or not stacks.can_answer(run.plan):
        return ""
    passed = counted(int(seconds // 60), "minute")
    return f"nothing was printed for {passed}; where the ranks are: toolkit stacks {run.word}"


def _ended_text(run: Run) -> str:
    text = records.ended_text(run)
    return f"{text}: toolkit stacks {run.word}" if text and stacks.can_answer(run.plan) else text


def _pause(run: Run, waited: float) -> float:
    """Return the seconds until Slurm is asked again: few for short jobs, more for long ones.

    The controller serves a whole site, but for that of a local cluster.
    """
    most = 1.0 if run.job is not None and run.job.cluster else 10.0
    return min(most, max(0.3, waited / 20))


def follow(run: Run, *, until: float = math.inf) -> Iterator[Event]:
    """Yield the events of a job until it has ended; the last is its ``Outcome``, which is recorded.

    Raises:
        JobLostError: Slurm does not know the job any more.
        SlurmUnreachableError: Slurm did not answer for ten minutes.
        TimeoutError: the job has not ended at ``until``, a time of ``time.monotonic``.
    """
    job_id, tail = run.job_id, logs.Tail(run)
    began = queried = answered = checked = time.monotonic()
    is_silent, misses = False, 0
    state: JobState | None = None
    checks = {"silent": silence_text, "waiting": _ended_text}
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
                yield Notice("waiting", f"{error.cause}; retrying for ten minutes")
            is_silent = True
        is_running = state is not None and state.state == "RUNNING"
        if is_running and time.monotonic() - checked > _CHECK_SECONDS:
            checked = time.monotonic()
            for subject, check in [*checks.items()]:
                if text := check(run):
                    del checks[subject]  # it is reported once
                    yield Notice(subject, text)
        queried = time.monotonic()
        if queried > until:
            raise TimeoutError(
                f"job {job_id} has not ended in {(queried - began) / 60:.0f} minutes"
            )
        while time.monotonic() - queried < _pause(run, queried - began):
            time.sleep(max(_READ_SECONDS, tail.cost / _READ_SHARE))
            yield from tail.read()
