"""Submit a run as one job, whatever is lost on the way to Slurm and back.

Each submission has a mark, which Slurm shows with the job. Where sbatch gives no answer, Slurm is
asked for the mark before the script is submitted again. A job that surfaces all the same, minutes
later, does no work: the first job of a mark to start claims the run (``Paths.claim``), any other
ends at once, and `toolkit ps`, `toolkit logs -f` and `toolkit run` cancel it when they see it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import SlurmSilentError, SubmissionError, UnrecordedError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.run import Submission, SubmissionAttempt
from toolkit.records.store import Paths
from toolkit.slurm.client import Client
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait, patiently

# Seconds before each query for a job that a busy controller may accept late.
_QUERIES = (0.0, 1.0, 2.0, 3.0)
# Submissions without an answer while Slurm answers everything else: then sbatch itself is broken.
_TRIES = 3


class Submitted(NamedTuple):
    """A job that Slurm has.

    Attributes:
        job_id: Slurm's number.
        is_doubtful: an answer of sbatch was lost: a second job with the same mark may surface.
    """

    job_id: int
    is_doubtful: bool


def now() -> str:
    """Return the present time: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def new_mark() -> str:
    """Return a mark that no other job has."""
    return f"toolkit-{secrets.token_hex(8)}"


def begin(paths: Paths, plan: Plan, cluster: str | None) -> SubmissionAttempt:
    """Record that a run is being submitted, before Slurm gets the script."""
    attempt = SubmissionAttempt(
        mark=new_mark(),
        site=plan.site,
        submitted=now(),
        cluster=cluster,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_start=process_start(os.getpid()),
    )
    write_atomically(paths.attempt, to_json(attempt))
    return attempt


def process_start(pid: int) -> int:
    """Return when a process of this host started, in clock ticks since boot; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def is_under_way(attempt: SubmissionAttempt) -> bool:
    """Return whether the submitting process still runs; False if it is on another host."""
    return (
        attempt.host == socket.gethostname()
        and attempt.process_start == process_start(attempt.pid) != 0
    )


def submit_once(client: Client, script: Path, mark: str, wait: Wait) -> Submitted:
    """Submit a script so that at the end Slurm has it once.

    Raises:
        SubmissionError: Slurm refused it.
        AnswerLostError: Slurm may have the job, and did not answer in time.
        SlurmSilentError: no controller was reached while ``wait`` lasted; nothing was submitted.
    """
    lost: AnswerLostError | None = None
    for _ in range(_TRIES):
        try:
            # Only a controller that was not reached is asked again: it cannot have the job.
            number = patiently(lambda: client.submit(script, mark), wait)
        except AnswerLostError as error:
            lost = error
            wait.notify(f"{error.cause}; asking Slurm whether it has the job")
            if jobs := find_jobs(client, mark, wait, lost):
                wait.notify(f"Slurm has it: job {jobs[0]}")
                return Submitted(jobs[0], True)
            wait.notify("Slurm does not have it; submitting it again")
        except SubmissionError as error:
            if lost is None:
                raise
            if jobs := find_jobs(client, mark, wait, lost):  # refused for being the second of two
                return Submitted(jobs[0], True)
            raise unknown(lost, error) from None
        except SlurmSilentError as error:
            raise unknown(lost, error) if lost is not None else error from None
        else:
            return Submitted(number, lost is not None)
    assert lost is not None
    raise AnswerLostError(
        f"sbatch gave no answer {_TRIES} times, and Slurm has no such job",
        place=lost.place,
        details=lost.details,
        next_step=lost.next_step,
    )


def find_jobs(client: Client, mark: str, wait: Wait, lost: AnswerLostError) -> tuple[int, ...]:
    """Return the jobs with a mark; several queries must show that there is none.

    Raises:
        AnswerLostError: Slurm does not say.
    """
    for pause in _QUERIES:
        time.sleep(pause)
        try:
            jobs = patiently(lambda: client.marked(mark), wait)
        except SlurmSilentError as error:
            raise unknown(lost, error) from None
        if jobs:
            return jobs
    return ()


def unknown(lost: AnswerLostError, error: SubmissionError | SlurmSilentError) -> AnswerLostError:
    """Return the error for a run whose job Slurm may or may not have."""
    return AnswerLostError(
        f"{lost.cause}, and {error.cause}: it is not known whether Slurm has the job",
        place=lost.place,
        details=error.details,
        next_step="before you run it again: toolkit ps, which finds the job once Slurm answers",
    )


def claim(paths: Paths, mark: str, job_id: int) -> int:
    """Claim a run for a job, and return the job that has it: this one, or one that was faster.

    The job's script does the same when it starts. A symbolic link is made by one step on every file
    system.
    """
    place = paths.claim(mark)
    with contextlib.suppress(FileExistsError):
        place.symlink_to(str(job_id))
    try:
        return int(str(place.readlink()))
    except (OSError, ValueError):
        return job_id


def release_claim(paths: Paths) -> None:
    """Remove the claim of a run that has ended and of which there cannot be a second job.

    It is a dangling symbolic link, at which copies of the directory (`scp -r`) fail.
    """
    submission = paths.read_submission()
    if submission is not None and submission.mark and not submission.is_doubtful:
        with contextlib.suppress(OSError):
            paths.claim(submission.mark).unlink()


def record(paths: Paths, attempt: SubmissionAttempt, submitted: Submitted) -> Submission:
    """Record which job a run is.

    Raises:
        UnrecordedError: Slurm has the job, and the directory cannot be written.
            The mark of the attempt stays there.
    """
    try:
        job_id = (
            claim(paths, attempt.mark, submitted.job_id)
            if submitted.is_doubtful
            else submitted.job_id
        )
        submission = Submission(
            job_id=job_id,
            site=attempt.site,
            submitted=attempt.submitted,
            cluster=attempt.cluster,
            mark=attempt.mark,
            is_doubtful=submitted.is_doubtful,
        )
        write_atomically(paths.submission, to_json(submission))
    except OSError as error:
        raise UnrecordedError(
            f"job {submitted.job_id} is queued, but cannot be recorded: {error.strerror}",
            place=str(paths.directory),
            next_step="make room there, then: toolkit ps, which finds the job by its mark",
        ) from error
    with contextlib.suppress(OSError):  # the record counts, an attempt beside it does not
        paths.attempt.unlink()
    return submission


def cancel_duplicates(client: Client, submission: Submission, jobs: Iterable[int]) -> list[int]:
    """Cancel every job of a run's mark but the run's own, and return them."""
    others = [job for job in jobs if job != submission.job_id]
    for job in others:
        client.cancel(job)
    return others


def recovered(paths: Paths, client_of: Callable[[SubmissionAttempt], Client]) -> Submission | None:
    """Record the job of a run whose submission was interrupted, or whose answer was lost.

    Return None if Slurm has no such job.

    Args:
        paths: of the run.
        client_of: returns the client of the cluster of an attempt.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    if not paths.attempt.is_file():
        return None
    attempt = read_json(paths.attempt, SubmissionAttempt)
    client = client_of(attempt)
    jobs = client.marked(attempt.mark)
    if not jobs:
        return None
    submission = record(paths, attempt, Submitted(jobs[0], True))
    cancel_duplicates(client, submission, jobs)
    return submission


def own_commands() -> Iterator[bytes]:
    """Yield the command lines of this user's other processes on this host."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if entry.stat().st_uid == os.geteuid():
                    yield (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
