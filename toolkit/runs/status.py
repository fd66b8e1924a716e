"""The present state of a run, whether it waits, runs or has ended; an end that nobody watched is worked out and written down."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from toolkit.errors import ConfigError, SlurmUnreachableError, UnrecordedError
from toolkit.files import read_json
from toolkit.localcluster.access import access as local_access
from toolkit.model.run import Attempt, JobState, Outcome, Submission
from toolkit.model.site import Access
from toolkit.model.ways import Stint
from toolkit.records.store import Paths
from toolkit.runs import excerpt, follow, once
from toolkit.runs.outcome import headline
from toolkit.slurm.client import Client, no_slurm
from toolkit.slurm.queue import Snapshot

_LATEST = 900.0  # seconds after which no job of a lost answer surfaces any more


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
    """Return the client of the cluster that a run was submitted to.

    Raises:
        SlurmUnreachableError: it is a local cluster that is not up.
    """
    return Client(local_access(submission.cluster) if submission.cluster else Access())


class Refresh:
    """The jobs of this user at one moment: each cluster is asked once, whatever the number of runs.

    Args:
        runs: those that will be asked for.
    """

    def __init__(self, runs: Iterable[Paths]) -> None:
        self._jobs: dict[str | None, list[int]] = {}
        self._snapshots: dict[str | None, Snapshot | SlurmUnreachableError] = {}
        for paths in runs:
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
        found = self._snapshots[cluster]
        if isinstance(found, SlurmUnreachableError):
            raise found
        return found


def current(paths: Paths, refresh: Refresh | None = None) -> tuple[JobState | None, Outcome | None]:
    """Return what Slurm says of a run, or how it came out; neither, if it was never submitted or Slurm has forgotten it.

    A second job of the same run, which surfaced after an answer of sbatch had been lost, is
    cancelled.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    outcome = paths.read_outcome()
    submission = (
        None if outcome is not None else paths.read_submission() or once.recovered(paths, client_of)
    )
    if outcome is not None or submission is None:
        return None, outcome
    client = client_of(submission)
    states, marks = (refresh or Refresh([paths])).jobs(client, submission.cluster)
    once.cancel_duplicates(
        client, submission, marks.get(submission.mark, ()) if submission.mark else ()
    )
    state = states.get(submission.job_id)
    if state is not None and not follow.is_of(state, paths, submission.mark):
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
    elements = (
        client_of(submission).elements(submission.job_id)
        if follow.read_plan(paths).array
        else {0: state}
    )
    return [one for one in elements.values() if one.state == "RUNNING"]


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
        seconds = (
            max(0.0, time.time() - state.start) if state.state == "RUNNING" and state.start else 0.0
        )
        return _row(paths, state.state, seconds, None, state.nodes, state.reason)
    return (
        _row(paths, "NOT SUBMITTED", 0.0, None, "", "")
        if was_never_submitted(paths)
        else unknown(paths)
    )


def was_never_submitted(paths: Paths) -> bool:
    """Return whether a submission was interrupted before Slurm had the job, given that Slurm has none with its mark."""
    if not paths.attempt.is_file() or any(paths.logs.glob("*.log")):
        return False
    attempt = read_json(paths.attempt, Attempt)
    is_old = time.time() - datetime.fromisoformat(attempt.submitted).timestamp() > _LATEST
    return not once.is_under_way(attempt) and (is_old or attempt.host == socket.gethostname())


def of_all(runs: Sequence[Paths]) -> list[Status]:
    """Return the state of each run; Slurm is asked once for all of them."""
    rows = []
    refresh = Refresh(paths for paths in runs if is_readable(paths))
    for paths in runs:
        try:
            rows.append(of(paths, refresh))
        except SlurmUnreachableError:
            rows.append(unknown(paths))
        except (ConfigError, UnrecordedError, OSError) as error:
            place = getattr(error, "place", None)
            message = f"{error} ({place})" if place else str(error)
            rows.append(Status(paths.name, 0, "UNREADABLE", 0.0, None, "", "", message))
    return rows


def is_readable(paths: Paths) -> bool:
    """Return whether the files of a run can be read."""
    try:
        follow.read_plan(paths)
        paths.read_submission()
    except (ConfigError, OSError):
        return False
    return True


def unknown(paths: Paths) -> Status:
    """Return the row of a run of which nothing can be said now."""
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
    plan = follow.read_plan(paths)
    number = submission.job_id if submission else 0
    attempts = max((stint.number for stint in stints(paths)), default=1)
    words = f"attempt {attempts}{f'; {message}' if message else ''}" if attempts > 1 else message
    return Status(paths.name, number, state, seconds, exit_code, plan.shape, nodes, words, attempts)


def stints(paths: Paths) -> tuple[Stint, ...]:
    """The attempts of a run that may go back into the queue, as far as they have begun; empty for any other."""
    outcome, submission, plan = (
        paths.read_outcome(),
        paths.read_submission(),
        follow.read_plan(paths),
    )
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
