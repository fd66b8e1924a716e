"""The present state of a run, whether it waits, runs or has ended; an end that nobody watched is worked out and written down."""

from __future__ import annotations

import time
from typing import NamedTuple

from toolkit.localcluster.access import access as local_access
from toolkit.model.run import Attempt, JobState, Outcome, Submission
from toolkit.model.site import Access
from toolkit.model.ways import Stint
from toolkit.runs import excerpt, follow, once
from toolkit.runs.outcome import headline
from toolkit.runs.store import Paths
from toolkit.slurm.client import Client, no_slurm


class Status(NamedTuple):
    """A row of `toolkit ps`. ``seconds`` is how long it ran, or has been running; ``exit_code`` is None before the end.

    ``attempts`` counts how often it was started: more than once where it goes back into the queue.
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


def client_of(submission: Submission | Attempt) -> Client:
    """The door to the cluster that a run was submitted to.

    Raises:
        SlurmUnreachableError: it is a local cluster that is not up.
    """
    return Client(local_access(submission.cluster) if submission.cluster else Access())


def current(paths: Paths) -> tuple[JobState | None, Outcome | None]:
    """What Slurm says of a run, or how it came out; neither, where it was never submitted or Slurm has forgotten it."""
    outcome = paths.read_outcome()
    submission = paths.read_submission() or once.recovered(paths, client_of)
    if outcome is not None or submission is None:
        return None, outcome
    client = client_of(submission)
    state = client.jobs([submission.job_id]).get(submission.job_id)
    if state is not None and not follow.is_of(state, paths):
        return None, None
    if state is not None and state.ended:
        return state, follow.finish(client, paths, follow.read_plan(paths), state)
    return state, None


def running(paths: Paths) -> list[JobState]:
    """The job of a run, if it runs now; of a job array each element that does.

    Raises:
        SlurmUnreachableError: it was never submitted, or Slurm does not answer.
    """
    state, _ = current(paths)
    submission = submission_of(paths)
    if state is None or state.state != "RUNNING":
        return []
    elements = client_of(submission).elements(submission.job_id) if follow.read_plan(paths).array else {0: state}
    return [one for one in elements.values() if one.state == "RUNNING"]


def of(paths: Paths) -> Status:
    """The state of a run.

    Raises:
        SlurmUnreachableError: it has not ended as far as is known, and Slurm does not answer.
    """
    state, outcome = current(paths)
    if outcome is not None:
        message = outcome.message or headline(outcome.results)
        return _row(paths, outcome.state, outcome.seconds, outcome.exit_code, outcome.nodes, message)
    if state is not None:
        seconds = max(0.0, time.time() - state.start) if state.state == "RUNNING" and state.start else 0.0
        return _row(paths, state.state, seconds, None, state.nodes, state.reason)
    return unknown(paths)


def unknown(paths: Paths) -> Status:
    """A run of which nothing can be said now."""
    return _row(paths, "UNKNOWN" if paths.submission.is_file() or paths.attempt.is_file() else "NOT SUBMITTED", 0.0, None, "", "")


def _row(paths: Paths, state: str, seconds: float, exit_code: int | None, nodes: str, message: str) -> Status:
    submission = paths.read_submission()
    plan = follow.read_plan(paths)
    number = submission.job_id if submission else 0
    attempts = max((stint.number for stint in stints(paths)), default=1)
    words = f"attempt {attempts}{f'; {message}' if message else ''}" if attempts > 1 else message
    return Status(paths.name, number, state, seconds, exit_code, plan.shape, nodes, words, attempts)


def stints(paths: Paths) -> tuple[Stint, ...]:
    """The attempts of a run that may go back into the queue, as far as they have begun; empty for any other."""
    outcome, submission, plan = paths.read_outcome(), paths.read_submission(), follow.read_plan(paths)
    if outcome is not None or submission is None or plan.requeue is None:
        return outcome.stints if outcome else ()
    return excerpt.history(paths, plan, submission.job_id).stints


def submission_of(paths: Paths) -> Submission:
    """That a run was submitted.

    Raises:
        SlurmUnreachableError: it was not.
    """
    submission = paths.read_submission() or once.recovered(paths, client_of)
    if submission is None:
        raise no_slurm(f"the run {paths.name} was never submitted", str(paths.directory))
    return submission
