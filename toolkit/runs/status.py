"""Query the state of runs: waiting, running or ended.

If a run ended while no process followed it, its outcome is derived and recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from toolkit.errors import ConfigError, SlurmUnreachableError, ToolkitError
from toolkit.localcluster.access import access as local_access
from toolkit.model.job import Job
from toolkit.model.run import (
    JobAttempt,
    JobState,
    Outcome,
    PointOutcome,
    Submission,
    SubmissionAttempt,
)
from toolkit.model.site import Access
from toolkit.runs import excerpt, once, parts, records, standings
from toolkit.runs.finish import finish, read_elements
from toolkit.runs.outcome import headline
from toolkit.runs.store import Paths
from toolkit.slurm.client import Client
from toolkit.slurm.failures import no_slurm
from toolkit.slurm.queue import Snapshot


class Status(NamedTuple):
    """A row of `toolkit ps`.

    Attributes:
        seconds: how long it ran, or has been running.
        exit_code: None before the end.
        attempts: how often it was started; more than once if it is requeued.
    """

    run: str
    job_id: int
    state: str
    seconds: float
    exit_code: int | None
    shape: str
    nodes: str
    message: str
    attempts: int = 1


def client_of(submission: SubmissionAttempt) -> Client:
    """Return the client of the cluster that a run was submitted to.

    Raises:
        SlurmUnreachableError: it is a local cluster that is not up.
    """
    return Client(local_access(submission.cluster) if submission.cluster else Access())


class Refresh:
    """The jobs of this user at one moment; each cluster is queried once for all runs."""

    def __init__(self, runs: Iterable[Paths]) -> None:
        """Remember the jobs of the runs that will be queried."""
        self._jobs: dict[str | None, list[int]] = {}
        self._snapshots: dict[str | None, Snapshot | SlurmUnreachableError] = {}
        for paths in runs:
            with suppress(ConfigError, OSError):  # the row of that run has the error
                submission = None if paths.outcome.is_file() else paths.read_submission()
                if submission is not None:
                    self._jobs.setdefault(submission.cluster, []).append(submission.job_id)

    def jobs(self, client: Client, cluster: str | None) -> Snapshot:
        """Return the jobs on a cluster.

        Raises:
            SlurmUnreachableError: it did not answer.
        """
        if cluster not in self._snapshots:
            try:
                self._snapshots[cluster] = client.snapshot(self._jobs.get(cluster, ()))
            except SlurmUnreachableError as error:
                self._snapshots[cluster] = error
        snapshot = self._snapshots[cluster]
        if isinstance(snapshot, SlurmUnreachableError):
            raise snapshot
        return snapshot


def current(paths: Paths, refresh: Refresh | None = None) -> tuple[JobState | None, Outcome | None]:
    """Return the state of a run in Slurm, and its outcome if it has ended.

    Both are None if it was never submitted, or if Slurm has forgotten it.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    refresh = refresh or Refresh([paths])
    outcome = paths.read_outcome()
    submission = None if outcome is not None else known_submission(paths, refresh)
    if outcome is not None or submission is None:
        return None, outcome
    client, plan = client_of(submission), paths.read_plan()
    if (ended := parts.ended_state(paths, submission.job_id)) is not None:
        return ended, finish(client, paths, plan, ended)
    state = refresh.jobs(client, submission.cluster).states.get(submission.job_id)
    if state is None or not parts.is_of(state, paths, plan):
        return None, None
    state = parts.own_state(paths, state)
    return state, finish(client, paths, plan, state) if state.ended else None


def known_submission(paths: Paths, refresh: Refresh | None = None) -> Submission | None:
    """Return the submission of a run; one that did not end is recorded if Slurm has the job.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    submission = paths.read_submission()
    attempt = once.read(paths) if submission is None else None
    if attempt is None:
        return submission
    client = client_of(attempt)
    jobs = (refresh or Refresh([paths])).jobs(client, attempt.cluster)
    job = client.find(parts.script_of(paths, paths.read_plan()), once.began(attempt), jobs)
    return once.record(paths, attempt, job) if job is not None else None


def running(paths: Paths) -> list[JobState]:
    """Return the running job of a run, or the running elements of its job array.

    Raises:
        SlurmUnreachableError: it was never submitted, or Slurm does not answer.
    """
    state, _ = current(paths)
    submission = submission_of(paths)
    if state is None or state.state != "RUNNING":
        return []
    elements = (
        client_of(submission).elements(submission.job_id) if paths.read_plan().array else {0: state}
    )
    return [element for element in elements.values() if element.state == "RUNNING"]


def of(paths: Paths, refresh: Refresh | None = None) -> Status:
    """Return the state of a run.

    Raises:
        SlurmUnreachableError: it has not ended as far as is known, and Slurm does not answer.
        ConfigError: a file of it cannot be read.
    """
    state, outcome = current(paths, refresh)
    if outcome is not None:
        message = outcome.message or headline(outcome.results)
        return _row(
            paths, outcome.state, outcome.seconds, outcome.exit_code, outcome.nodes, message
        )
    if state is not None:
        is_running = state.state == "RUNNING"
        seconds = max(0.0, time.time() - state.start) if is_running and state.start else 0.0
        ended = standings.ended_text(paths, paths.read_plan(), state.job_id) if is_running else ""
        return _row(paths, state.state, seconds, None, state.nodes, ended or state.reason)
    return (
        _row(paths, "NOT SUBMITTED", 0.0, None, "", "")
        if was_never_submitted(paths)
        else unknown(paths)
    )


def was_never_submitted(paths: Paths) -> bool:
    """Return whether a submission was interrupted before Slurm had the job.

    The caller knows that Slurm has no job of its script.
    """
    attempt = once.read(paths)
    return attempt is not None and once.is_settled(attempt) and not any(paths.logs.glob("*.log"))


def of_all(runs: Sequence[Paths]) -> list[Status]:
    """Return the state of each run, bad ones too; Slurm is queried once for all of them."""
    refresh = Refresh(runs)
    return [_of_any(paths, refresh) for paths in runs]


def _of_any(paths: Paths, refresh: Refresh) -> Status:
    try:
        try:
            return of(paths, refresh)
        except SlurmUnreachableError:
            return unknown(paths)
    except (ToolkitError, OSError) as error:
        place = getattr(error, "place", None)
        message = f"{error} ({place})" if place else str(error)
        return Status(paths.name, 0, "UNREADABLE", 0.0, None, "", "", message)


def unknown(paths: Paths) -> Status:
    """Return the row of a run whose state is not known now."""
    return _row(
        paths,
        "UNKNOWN" if paths.submission.is_file() or paths.attempt.is_file() else "NOT SUBMITTED",
        0.0,
        None,
        "",
        "",
    )


def _row(
    paths: Paths, state: str, seconds: float, exit_code: int | None, nodes: str, message: str
) -> Status:
    submission = paths.read_submission()
    plan = paths.read_plan()
    number = submission.job_id if submission else 0
    attempts = max((attempt.number for attempt in attempts_of(paths)), default=1)
    text = f"attempt {attempts}{f'; {message}' if message else ''}" if attempts > 1 else message
    return Status(paths.name, number, state, seconds, exit_code, plan.shape, nodes, text, attempts)


def attempts_of(paths: Paths) -> tuple[JobAttempt, ...]:
    """Return the attempts of a run that may be requeued; empty for any other run."""
    outcome, submission, plan = (
        paths.read_outcome(),
        paths.read_submission(),
        paths.read_plan(),
    )
    if outcome is not None or submission is None or plan.requeue is None:
        return outcome.attempts if outcome else ()
    return excerpt.history(paths, plan, submission.job_id).attempts


def submission_of(paths: Paths) -> Submission:
    """Return the submission of a run.

    Raises:
        SlurmUnreachableError: it was never submitted.
    """
    submission = known_submission(paths)
    if submission is None:
        raise no_slurm(f"the run {paths.name} was never submitted", str(paths.directory))
    return submission


def elements(paths: Paths) -> tuple[PointOutcome, ...]:
    """Return the elements of a run that is a job array, now or as they came out.

    Raises:
        SlurmUnreachableError: it was never submitted, or has not ended and Slurm does not answer.
    """
    _, came_out = current(paths)
    if came_out is not None:
        return came_out.points
    submission, plan = submission_of(paths), paths.read_plan()
    states = client_of(submission).elements(submission.job_id)
    past = excerpt.history(paths, plan, submission.job_id)
    processes = records.read(paths, plan, submission.job_id)
    return read_elements(paths, plan, submission.job_id, states, past, processes, ended=False)


def elements_with_earlier(paths: Paths) -> list[tuple[str, PointOutcome]]:
    """Return the elements of a run, each with the name of its run.

    A rerun of failed points has the elements that succeeded in the earlier run, too.
    """
    by_number = {point.number: (paths.name, point) for point in elements(paths)}
    names = {paths.name}
    with suppress(ToolkitError, OSError):  # the earlier run has been removed, or cannot be read
        job = paths.read(paths.job, Job)
        while job and job.rerun_of and job.rerun_of not in names:
            names.add(job.rerun_of)
            earlier = Paths(paths.directory.parent / job.rerun_of)
            before = {point.number: (earlier.name, point) for point in elements(earlier)}
            by_number = before | by_number
            job = earlier.read(earlier.job, Job)
    return [by_number[number] for number in sorted(by_number)]
