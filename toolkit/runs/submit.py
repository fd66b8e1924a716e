"""Submit the job of a written run once: sbatch is never called again where Slurm may have the job.

Only a controller that was not reached is asked again. If the answer of sbatch is lost, Slurm is
searched for the path of the run's script, which no other run has. As long as it is not known
whether Slurm has the job, ``attempt.json`` is in the run's directory, and the next `toolkit ps`,
`toolkit logs` or `toolkit run` searches again. sbatch inherits the lock of that file, so that
everyone sees that it still works, even without the process that started it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from toolkit import runtimes
from toolkit.errors import SlurmUnreachableError, SubmissionError, ToolkitError
from toolkit.files import open_regular, write_atomically
from toolkit.images.store import usage
from toolkit.model.base import to_json
from toolkit.model.run import Outcome, Submission
from toolkit.runs.run import Run
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait, patiently

# Seconds before each search for a job that a busy controller may accept late.
_PAUSES = (0.0, 1.0, 2.0, 3.0)


def submit(run: Run, cluster: str | None, wait: Wait) -> int:
    """Submit a written run once, and return the number of its job.

    From now on the run's directory is never removed.

    Args:
        run: with its plan and script.
        cluster: name of the local cluster that it goes to, if it is one.
        wait: patience with a Slurm that does not answer.

    Raises:
        SubmissionError: Slurm refused the job; `toolkit ps` lists the run as refused.
        SlurmSilentError: no controller was reached; `toolkit ps` lists the run as not submitted.
        AnswerLostError: it is not known whether Slurm has the job; `toolkit ps` searches for it.
        UnrecordedError: Slurm has the job, but its number could not be recorded; `toolkit ps` does.
    """
    with begun(run, cluster) as lock:
        try:
            run.record(patiently(lambda: run.client.submit(run.script, (lock,)), wait))
        except AnswerLostError as lost:
            wait.notify(f"{lost.cause}; asking Slurm whether it has the job")
            if not search(run, wait):
                raise AnswerLostError(
                    f"{lost.cause}: it is not known whether Slurm has the job",
                    place=lost.place,
                    details=lost.details,
                    next_step="before you run it again: toolkit ps, which looks for the job again",
                ) from None
            wait.notify(f"Slurm has it: job {run.job_id}")
        except (SubmissionError, SlurmUnreachableError) as error:
            _not_submitted(run, error)
            raise
    runtime, image = run.plan.container.runtime, Path(run.plan.container.image)
    if runtimes.get(runtime).image == "sif":
        usage.note(image, usage.Use(run.directory, run.job_id, cluster))
    return run.job_id


@contextmanager
def begun(run: Run, cluster: str | None) -> Iterator[int]:
    """Record that a submission begins, and yield the lock of that record, which sbatch inherits."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    run.job = Submission(site=run.plan.site, submitted=now, cluster=cluster)
    draft = run.directory / "attempt.new"
    # Others may not read it, because who reads a file can hold its lock.
    write_atomically(draft, to_json(run.job), mode=0o600)
    lock = os.open(draft, os.O_RDWR)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        draft.replace(run.directory / "attempt.json")
        yield lock
    finally:
        os.close(lock)


def is_over(run: Run, seconds: float = 0.0) -> bool:
    """Return whether no process submits a run any more; wait for that at most so many seconds."""
    until = time.monotonic() + seconds
    while True:
        try:
            with open_regular(run.directory / "attempt.json") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.2)
        except OSError:  # it is gone, or the file system has no locks
            return True
        else:
            return True


def search(run: Run, wait: Wait) -> bool:
    """Ask Slurm for the job of a run until it is there; return whether it has shown up."""
    with suppress(SlurmUnreachableError):
        for pause in _PAUSES:
            time.sleep(pause)
            if patiently(run.find, wait) is not None:
                return True
    return False


def _not_submitted(run: Run, error: ToolkitError) -> None:
    """Record that Slurm does not have a run, and why if it refused the job."""
    if isinstance(error, SubmissionError):
        message = "; ".join((error.cause, *error.details))
        run.outcome = Outcome(
            state="REFUSED", kind="refused", exit_code=error.exit_code, seconds=0.0, message=message
        )
        write_atomically(run.directory / "outcome.json", to_json(run.outcome))
    (run.directory / "attempt.json").unlink(missing_ok=True)
    run.job = None
    name = f"{run.directory.parent.name}/{run.name}"
    again = f"the script is kept; submit it again: toolkit run {name}"
    error.details = (*error.details, again)
