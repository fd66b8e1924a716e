"""Query the state of runs, waiting, running or ended, and follow one until its end.

If a run ended while no process followed it, its outcome is derived, and kept if it is the caller's.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import (
    ConfigError,
    JobLostError,
    SlurmUnreachableError,
    ToolkitError,
    UsageError,
)
from toolkit.model.run import JobState, Outcome, PointOutcome
from toolkit.runs import logs, records, stacks
from toolkit.runs.logs import history
from toolkit.runs.outcome import finish, headline, read_elements
from toolkit.runs.run import Run, client_of, find
from toolkit.slurm.queue import Snapshot
from toolkit.trust import require_trusted
from toolkit.units import counted

# Seconds after which Slurm shows the job of every submission whose answer was lost, or never will.
_LATEST = 900.0


class Row(NamedTuple):
    """A row of `toolkit ps`.

    Attributes:
        seconds: how long it ran, or has been running.
        exit_code: None before the end.
    """

    run: str
    job_id: int = 0
    state: str = "UNKNOWN"
    seconds: float = 0.0
    exit_code: int | None = None
    shape: str = ""
    nodes: str = ""
    message: str = ""


_HOW = ("afterok", "afterany", "afternotok")
_ENTRY = re.compile(rf"(?:(?P<how>{'|'.join(_HOW)}):)?(?P<run>[^:]+)\Z")
Answers = dict[str | None, Snapshot | SlurmUnreachableError]  # by the name of the local cluster


def ask(runs: Iterable[Run]) -> Answers:
    """Ask each cluster once for the jobs of runs that have not ended as far as is known."""
    jobs: dict[str | None, list[int]] = {}
    for run in runs:
        with suppress(ConfigError, OSError):  # the row of that run has the error
            if run.outcome is None and run.job is not None:
                jobs.setdefault(run.job.cluster, []).append(run.number)
    answers: Answers = {}
    for cluster, numbers in jobs.items():
        try:
            answers[cluster] = client_of(cluster).snapshot([*filter(None, numbers)])
        except SlurmUnreachableError as error:
            answers[cluster] = error
    return answers


def query(run: Run, answers: Answers | None = None) -> JobState | None:
    """Return the state of a run's job in Slurm; once it has ended, ``run.outcome`` is known.

    None: the run has ended before, was never submitted, or Slurm has forgotten its job.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    if run.outcome is not None or run.job is None:
        return None
    known = answers.get(run.job.cluster) if answers is not None else None
    if isinstance(known, SlurmUnreachableError):
        raise known
    state = run.state(known)
    if state is not None and state.ended:
        finish(run, state)
    return state


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the state of each run, bad ones too; Slurm is asked once for all of them."""
    answers = ask(runs)
    return [_row(run, answers) for run in runs]


def _row(run: Run, answers: Answers) -> Row:
    row = Row(run.name)
    try:
        row = row._replace(shape=run.plan.shape)
        values = _values(run, query(run, answers))
    except SlurmUnreachableError:
        return row._replace(job_id=run.number)
    except (ToolkitError, OSError) as error:
        place = getattr(error, "place", None)
        message = f"{error} ({place})" if place else str(error)
        return Row(run.name, state="UNREADABLE", message=message)
    return row._replace(job_id=run.number, **values)


def _values(run: Run, state: JobState | None) -> dict[str, Any]:
    if (outcome := run.outcome) is not None:
        return {
            "state": outcome.state,
            "seconds": outcome.seconds,
            "exit_code": outcome.exit_code,
            "nodes": outcome.nodes,
            "message": outcome.message or headline(outcome.results),
        }
    if state is None:
        name = "NOT SUBMITTED" if was_never_submitted(run) else "UNKNOWN"
        return {"state": name, "message": ""}
    is_running = state.state == "RUNNING"
    return {
        "state": state.state,
        "seconds": max(0.0, time.time() - state.start) if is_running and state.start else 0.0,
        "nodes": state.nodes,
        "message": (is_running and records.ended_text(run)) or state.reason,
    }


def was_never_submitted(run: Run) -> bool:
    """Return whether a submission was interrupted before Slurm had the job.

    The caller knows that Slurm has no job of the run's script.
    """
    if not run.is_own:  # who reads another user's record does not reckon with it
        return False
    if run.job is None:
        return True
    is_settled = not run.number and time.time() - run.job.began > _LATEST
    return is_settled and not any(run.logs.glob("*.log"))


def running(run: Run) -> list[JobState]:
    """Return the running job of a run, or the running elements of its job array.

    Raises:
        SlurmUnreachableError: it was never submitted, or Slurm does not answer.
    """
    number, state = run.job_id, query(run)
    if state is None or state.state != "RUNNING":
        return []
    states = run.client.elements(number).values() if run.plan.array else [state]
    return [element for element in states if element.state == "RUNNING"]


def require_running(run: Run) -> list[JobState]:
    """Return the running job of a run, or the running elements of its job array.

    Raises:
        JobLostError: the run is not running.
    """
    states = running(run)
    if not states:
        raise JobLostError(
            f"{run.name} is not running",
            place="RUN",
            next_step=f"toolkit ps; toolkit logs {run.word}",
        )
    return states


def elements(run: Run) -> tuple[PointOutcome, ...]:
    """Return the elements of a run that is a job array, now or as they came out.

    Raises:
        SlurmUnreachableError: it was never submitted, or has not ended and Slurm does not answer.
    """
    query(run)
    if run.outcome is not None:
        return run.outcome.points
    states, past = run.client.elements(run.job_id), history(run)
    return read_elements(run, states, past, records.read(run), ended=False)


def dependencies(
    texts: Iterable[str], runs: Path, cluster: str | None
) -> tuple[tuple[str, ...], list[ToolkitError]]:
    """Return Slurm's dependencies of a job, and what is wrong with those that it names.

    A run that has ended as required is left out.

    Args:
        texts: ``train-0007``, ``afterany:train-0007``, or the number of a job that is no run.
        runs: directory of the runs.
        cluster: name of the local cluster that the job goes to; None: another cluster.
    """
    words, findings = list[str](), list[ToolkitError]()
    for text in texts:
        try:
            words += _words(text, runs, cluster)
        except ToolkitError as error:
            error.place = "--after"
            findings.append(error)
    return tuple(dict.fromkeys(words)), findings


def _words(text: str, runs: Path, cluster: str | None) -> list[str]:
    match = _ENTRY.match(text)
    if not match:
        raise UsageError(
            f"{text!r} does not name a run",
            choices=_HOW,
            next_step="--after train-0007, or --after afterany:train-0007",
        )
    how, name = match["how"] or "afterok", match["run"]
    if name.isdigit():
        return [f"{how}:{name}"]
    run = find(name, runs)
    require_trusted(run.directory)
    state = query(run)
    if run.outcome is not None:
        succeeded = run.outcome.kind == "ok"
        if how != "afterany" and succeeded != (how == "afterok"):
            outcome = "succeeded" if succeeded else "failed"
            raise UsageError(
                f"{run.name} {outcome}: a job with {how} on it would never start",
                next_step=f"--after afterany:{run.name}, or leave it out",
            )
        return []
    if run.job is not None and run.job.cluster != cluster:
        raise UsageError(
            f"{run.name} runs on another cluster: {run.job.cluster or run.job.site}",
            next_step="--site",
        )
    if state is None and run.job_id:
        raise UsageError(
            f"the outcome of {run.name} is not known: Slurm has forgotten the job",
            next_step=f"toolkit logs {run.name}",
        )
    return [f"{how}:{run.job_id}"]


# Follow a submitted run: its states, the lines of its logs, and its outcome.

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
