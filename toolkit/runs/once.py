"""One run is one job, whatever is lost on the way to Slurm and back.

Each job carries a mark of its own. Where sbatch gave no answer, Slurm is asked for the mark before anything is submitted again; where Slurm
has two jobs of one mark all the same, because it took its time over the first, the later one is cancelled.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import SlurmSilentError, SubmissionError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import to_json
from toolkit.model.run import Attempt, Submission
from toolkit.runs.store import Paths
from toolkit.slurm.client import AnswerLostError, Client
from toolkit.slurm.patience import Wait, patiently

_LOOKS = (0.0, 1.0, 2.0, 3.0)  # seconds before each look for a job that a busy controller may take late
_TRIES = 3  # submissions that give no answer while Slurm answers all else: then it is sbatch itself that is broken


def now() -> str:
    """The present, as it is written down: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def new_mark() -> str:
    """A word that no other job has."""
    return f"toolkit-{secrets.token_hex(8)}"


def submit_once(client: Client, script: Path, mark: str, wait: Wait) -> int:
    """Submit a script so that at the end Slurm has it once, and return the job's id.

    Raises:
        SubmissionError: Slurm refused it.
        AnswerLostError: Slurm may have the job, and did not say in time.
        SlurmSilentError: no controller was reached for as long as ``wait`` has patience; nothing was submitted.
    """
    lost: AnswerLostError | None = None
    for _ in range(_TRIES):
        try:
            # Here only a controller that was not reached is asked again: it cannot have taken the job.
            number = patiently(lambda: client.submit(script, mark), wait)
        except AnswerLostError as error:
            lost = error
            wait.tell(f"{error.cause}; asking Slurm whether it has the job")
            if found := _look(client, mark, lost, wait):
                wait.tell(f"Slurm has it: job {found[0]}")
                return only_one(client, found)
            wait.tell("Slurm does not have it; submitting it again")
        except SubmissionError:
            if lost is not None and (found := _look(client, mark, lost, wait)):
                return only_one(client, found)  # refused for being the second of two
            raise
        except SlurmSilentError as error:
            raise _unknown(lost, error) if lost is not None else error from None
        else:
            return number if lost is None else only_one(client, _late(client, mark, wait) or (number,))
    assert lost is not None
    raise AnswerLostError(
        f"sbatch gave no answer {_TRIES} times, and Slurm has no such job", place=lost.place, details=lost.details, next_step=lost.next_step
    )


def _look(client: Client, mark: str, lost: AnswerLostError, wait: Wait) -> tuple[int, ...]:
    """The jobs with a mark; none is believed only after several looks.

    Raises:
        AnswerLostError: Slurm does not say.
    """
    for pause in _LOOKS:
        time.sleep(pause)
        try:
            found = patiently(lambda: client.marked(mark), wait)
        except SlurmSilentError as error:
            raise _unknown(lost, error) from None
        if found:
            return found
    return ()


def _late(client: Client, mark: str, wait: Wait) -> tuple[int, ...]:
    """The jobs with a mark after one more was submitted: the first may have come late."""
    try:
        return patiently(lambda: client.marked(mark), wait)
    except SlurmSilentError:
        return ()


def _unknown(lost: AnswerLostError, error: SlurmSilentError) -> AnswerLostError:
    return AnswerLostError(
        f"{lost.cause}, and {error.cause}: it is not known whether Slurm has the job",
        place=lost.place,
        details=error.details,
        next_step="before you run it again: toolkit ps, which looks for the job as soon as Slurm answers",
    )


def only_one(client: Client, jobs: Sequence[int]) -> int:
    """Keep the first of several jobs of one mark, and cancel the others."""
    for job in jobs[1:]:
        client.cancel(job)
    return jobs[0]


def recovered(paths: Paths, client_of: Callable[[Attempt], Client]) -> Submission | None:
    """That a run was submitted after all, where its answer was lost and nobody looked since; None: Slurm has no such job.

    Args:
        client_of: gives the door to the cluster of an attempt.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    if not paths.attempt.is_file():
        return None
    attempt = read_json(paths.attempt, Attempt)
    client = client_of(attempt)
    found = client.marked(attempt.mark)
    return record(paths, attempt, only_one(client, found)) if found else None


def record(paths: Paths, attempt: Attempt, job_id: int) -> Submission:
    """Write down that Slurm has the job."""
    submission = Submission(job_id=job_id, site=attempt.site, submitted=attempt.submitted, cluster=attempt.cluster)
    write_atomically(paths.submission, to_json(submission))
    paths.attempt.unlink(missing_ok=True)
    return submission
