"""Query the state of runs: waiting, running or ended.

If a run ended while no process followed it, its outcome is derived, and kept if it is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from toolkit.errors import ConfigError, SlurmUnreachableError, ToolkitError
from toolkit.model.job import Job
from toolkit.model.run import JobAttempt, JobState, PointOutcome
from toolkit.runs import excerpt, records, standings
from toolkit.runs.finish import finish, read_elements
from toolkit.runs.outcome import headline
from toolkit.runs.run import Run, client_of
from toolkit.slurm.queue import Snapshot

# Seconds after which Slurm shows the job of every submission whose answer was lost, or never will.
_LATEST = 900.0


class Row(NamedTuple):
    """A row of `toolkit ps`.

    Attributes:
        seconds: how long it ran, or has been running.
        exit_code: None before the end.
        attempts: how often it was started; more than once if it is requeued.
    """

    run: str
    job_id: int = 0
    state: str = "UNKNOWN"
    seconds: float = 0.0
    exit_code: int | None = None
    shape: str = ""
    nodes: str = ""
    message: str = ""
    attempts: int = 1


Answers = dict[str | None, Snapshot | SlurmUnreachableError]  # by the name of the local cluster


def ask(runs: Iterable[Run]) -> Answers:
    """Ask each cluster once for the jobs of runs that have not ended as far as is known."""
    jobs: dict[str | None, list[int]] = {}
    for run in runs:
        with suppress(ConfigError, OSError):  # the row of that run has the error
            if run.outcome is None and run.job is not None:
                numbers = jobs.setdefault(run.job.cluster, [])
                numbers += [run.job.job_id] if run.job.job_id else []
    answers: Answers = {}
    for cluster, numbers in jobs.items():
        try:
            answers[cluster] = client_of(cluster).snapshot(numbers)
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
    known = answers[run.job.cluster] if answers is not None else None
    if isinstance(known, SlurmUnreachableError):
        raise known
    state = run.state(known)
    # How a part of an allocation came out is known to the study that it belongs to.
    if state is not None and state.ended and not run.plan.is_part:
        finish(run, state)
    return state


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the state of each run, bad ones too; Slurm is asked once for all of them."""
    answers = ask(runs)
    return [_row_of_any(run, answers) for run in runs]


def _row_of_any(run: Run, answers: Answers) -> Row:
    try:
        return row(run, answers)
    except (ToolkitError, OSError) as error:
        place = getattr(error, "place", None)
        message = f"{error} ({place})" if place else str(error)
        return Row(run.name, state="UNREADABLE", message=message)


def row(run: Run, answers: Answers) -> Row:
    """Return the state of a run as a row; it is unknown where Slurm does not answer.

    Raises:
        ConfigError: a file of the run cannot be read.
    """
    known = Row(run.name, shape=run.plan.shape)
    try:
        state = query(run, answers)
    except SlurmUnreachableError:
        return known._replace(job_id=_number(run))
    known = known._replace(job_id=_number(run))
    if run.outcome is not None:
        known = known._replace(
            state=run.outcome.state,
            seconds=run.outcome.seconds,
            exit_code=run.outcome.exit_code,
            nodes=run.outcome.nodes,
            message=run.outcome.message or headline(run.outcome.results),
        )
    elif state is not None:
        known = known._replace(state=state.state, nodes=state.nodes, message=state.reason)
        if state.state == "RUNNING":
            seconds = max(0.0, time.time() - state.start) if state.start else 0.0
            ended = standings.ended_text(run)
            known = known._replace(seconds=seconds, message=ended or state.reason)
    elif was_never_submitted(run):
        known = known._replace(state="NOT SUBMITTED")
    attempts = max((attempt.number for attempt in attempts_of(run)), default=1)
    if attempts > 1:
        more = f"; {known.message}" if known.message else ""
        known = known._replace(attempts=attempts, message=f"attempt {attempts}{more}")
    return known


def _number(run: Run) -> int:
    return (run.job.job_id if run.job else None) or 0


def was_never_submitted(run: Run) -> bool:
    """Return whether a submission was interrupted before Slurm had the job.

    The caller knows that Slurm has no job of the run's script.
    """
    if run.job is None:
        return True
    is_settled = run.job.job_id is None and time.time() - run.job.began > _LATEST
    return run.is_own and is_settled and not any(run.logs.glob("*.log"))


def attempts_of(run: Run) -> tuple[JobAttempt, ...]:
    """Return the attempts of a run that may be requeued; empty for any other run."""
    if run.outcome is not None:
        return run.outcome.attempts
    if run.job is None or run.job.job_id is None:
        return ()
    return excerpt.history(run).attempts


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


def elements(run: Run) -> tuple[PointOutcome, ...]:
    """Return the elements of a run that is a job array, now or as they came out.

    Raises:
        SlurmUnreachableError: it was never submitted, or has not ended and Slurm does not answer.
    """
    query(run)
    if run.outcome is not None:
        return run.outcome.points
    states, past = run.client.elements(run.job_id), excerpt.history(run)
    return read_elements(run, states, past, records.read(run), ended=False)


def elements_with_earlier(run: Run) -> list[tuple[str, PointOutcome]]:
    """Return the elements of a run, each with the name of its run.

    A rerun of failed points has the elements that succeeded in the earlier run, too.
    """
    by_number = {point.number: (run.name, point) for point in elements(run)}
    names = {run.name}
    with suppress(ToolkitError, OSError):  # the earlier run has been removed, or cannot be read
        job = run.read("job.json", Job)
        while job and job.rerun_of and job.rerun_of not in names:
            names.add(job.rerun_of)
            run = Run(run.directory.parent / job.rerun_of)
            by_number = {point.number: (run.name, point) for point in elements(run)} | by_number
            job = run.read("job.json", Job)
    return [by_number[number] for number in sorted(by_number)]
