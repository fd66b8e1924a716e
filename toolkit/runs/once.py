"""Submit a run once: sbatch is never called again where Slurm may have the job.

Only a controller that was not reached is asked again. If the answer of sbatch is lost, the queue
and the accounting are searched for the path of the run's script, which no other run has. As long as
it is not known whether Slurm has the job, ``attempt.json`` is in the run's directory, and the next
`toolkit ps`, `toolkit logs` or `toolkit run` searches again. sbatch inherits the lock of that file,
so that everyone sees that it still works, even without the process that started it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from msgspec.structs import asdict

from toolkit.errors import SlurmUnreachableError, UnrecordedError
from toolkit.files import open_regular, write_atomically
from toolkit.model.base import to_json
from toolkit.model.run import Submission, SubmissionAttempt
from toolkit.runs.store import Paths
from toolkit.slurm.client import Client
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait, patiently

# Seconds before each search for a job that a busy controller may accept late.
_PAUSES = (0.0, 1.0, 2.0, 3.0)
_LATEST = 900.0  # seconds after which no job surfaces any more whose answer was lost
SBATCH_SECONDS = 70.0  # sbatch itself gives up earlier
_Answer = TypeVar("_Answer")


@contextmanager
def begun(paths: Paths, site: str, cluster: str | None) -> Iterator[tuple[SubmissionAttempt, int]]:
    """Record that a run is being submitted, before Slurm gets the script.

    Yields:
        the record, and its lock for the program that submits.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    attempt = SubmissionAttempt(site=site, submitted=now, cluster=cluster)
    draft = paths.attempt.with_suffix(".new")
    # Others may not read it, because who reads a file can hold its lock.
    write_atomically(draft, to_json(attempt), mode=0o600)
    lock = os.open(draft, os.O_RDWR)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        draft.replace(paths.attempt)
        yield attempt, lock
    finally:
        os.close(lock)


def read(paths: Paths) -> SubmissionAttempt | None:
    """Return the submission of this user's run that has no known end; None if there is none."""
    return paths.read(paths.attempt, SubmissionAttempt) if paths.is_own else None


def is_over(paths: Paths, seconds: float = 0.0) -> bool:
    """Return whether no process submits a run any more; wait for that at most so many seconds."""
    until = time.monotonic() + seconds
    while True:
        try:
            with open_regular(paths.attempt) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.2)
        except OSError:  # it is gone, or the file system has no locks
            return True
        else:
            return True


def began(attempt: SubmissionAttempt) -> float:
    """Return when a submission began, in seconds since the epoch."""
    return datetime.fromisoformat(attempt.submitted).timestamp()


def is_settled(attempt: SubmissionAttempt) -> bool:
    """Return whether Slurm shows the job of a submission by now, or never will."""
    return time.time() - began(attempt) > _LATEST


def submit_once(client: Client, script: Path, since: float, lock: int, wait: Wait) -> int:
    """Submit a script, and return the job's id.

    Raises:
        SubmissionError: Slurm refused it.
        AnswerLostError: Slurm may have the job, or get it late.
        SlurmSilentError: no controller was reached while ``wait`` lasted; nothing was submitted.
    """
    try:
        return patiently(lambda: client.submit(script, (lock,)), wait)
    except AnswerLostError as lost:
        wait.notify(f"{lost.cause}; asking Slurm whether it has the job")
        job = search(lambda: client.find(str(script), since), wait)
        if job is None:
            raise AnswerLostError(
                f"{lost.cause}: it is not known whether Slurm has the job",
                place=lost.place,
                details=lost.details,
                next_step="before you run it again: toolkit ps, which looks for the job again",
            ) from None
        wait.notify(f"Slurm has it: job {job}")
        return job


def search(ask: Callable[[], _Answer | None], wait: Wait) -> _Answer | None:
    """Ask Slurm for a job until it is there; None if it does not show up, or Slurm is silent."""
    with suppress(SlurmUnreachableError):
        for pause in _PAUSES:
            time.sleep(pause)
            if (answer := patiently(ask, wait)) is not None:
                return answer
    return None


def record(paths: Paths, attempt: SubmissionAttempt, job_id: int) -> Submission:
    """Record which job a run is.

    Raises:
        UnrecordedError: Slurm has the job, and the directory cannot be written.
            The record of the attempt stays there.
    """
    submission = Submission(job_id=job_id, **asdict(attempt))
    try:
        write_atomically(paths.submission, to_json(submission))
    except OSError as error:
        raise UnrecordedError(
            f"job {job_id} is queued, but cannot be recorded: {error.strerror}",
            place=str(paths.directory),
            next_step="make room there, then: toolkit ps, which finds the job by its script",
        ) from error
    with suppress(OSError):  # the record counts, an attempt beside it does not
        paths.attempt.unlink()
    return submission
