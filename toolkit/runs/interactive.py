"""A run in an allocation of its own that lives as long as this process: ``salloc`` with the plan's resources, and the script in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from types import FrameType

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import SlurmUnreachableError, SubmissionError
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome, Submission
from toolkit.records.store import Paths
from toolkit.runs import follow, status
from toolkit.slurm.client import Client

# Options of sbatch that salloc does not have, or that mean nothing to a job that somebody waits
# for.
_SBATCH_ONLY = frozenset(("requeue", "no-requeue", "array"))
_LOOK = 0.1  # seconds between two looks for the number of the job
_PATIENCE = 60.0  # seconds for Slurm to clean up after the last process
_SHORT_PATIENCE = 10.0  # seconds for salloc to take its request back


def words(decided: Plan, script: str) -> tuple[str, ...]:
    """The command that gets the allocation and runs the script in it. Pure."""
    options = (
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in decided.sbatch_options
        if name not in _SBATCH_ONLY
    )
    return ("salloc", *options, "bash", script)


def start(client: Client, paths: Paths, decided: Plan) -> subprocess.Popen[str]:
    """Ask for the allocation. With ``pty`` the terminal is the script's; else it reads nothing, and Ctrl-C is for us alone."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SBATCH_", "SALLOC_", "SLURM_"))
    }
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    prefix = client.access.prefix
    if prefix and decided.pty:
        # What enters the local cluster has the terminal, too: ended by Ctrl-C, it would have salloc
        # told a second time (_release).
        prefix = ("env", "--ignore-signal=INT", *prefix, "env", "--default-signal=INT")
    argv = (*prefix, *words(decided, str(paths.script)))
    stdin = None if decided.pty else subprocess.DEVNULL
    return shell.start(
        argv, env=environment, stdin=stdin, stdout=None, stderr=None, new_session=not decided.pty
    )


def granted(
    process: subprocess.Popen[str], paths: Paths, decided: Plan, cluster: str | None
) -> Submission:
    """Wait until the script has begun, and note the job's number.

    Raises:
        SubmissionError: there was no allocation; the run's directory is gone again.
    """
    while (number := _allocated(paths)) is None:
        if process.poll() is not None and _allocated(paths) is None:
            shutil.rmtree(paths.directory)
            raise SubmissionError(
                f"Slurm gave no allocation: salloc ended with {process.returncode}; nothing was started",
                place="salloc",
                next_step="what it said is above; toolkit cluster shows what is free",
            )
        time.sleep(_LOOK)
    submission = Submission(
        job_id=number,
        site=decided.site,
        submitted=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        cluster=cluster,
    )
    write_atomically(paths.submission, to_json(submission))
    return submission


def _allocated(paths: Paths) -> int | None:
    """The number that the script wrote down, if it has; the file is there a moment before its content."""
    try:
        text = paths.allocation.read_text()
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") else None


def ended(client: Client, paths: Paths, job_id: int) -> JobState | None:
    """What Slurm says of the job once its script has ended; None: nothing any more."""
    until = time.monotonic() + _PATIENCE
    while True:
        state = client.jobs([job_id]).get(job_id)
        if (
            state is None
            or not follow.is_of(state, paths, "")
            or state.ended
            or time.monotonic() > until
        ):
            return state
        time.sleep(_LOOK)


@contextmanager
def held(
    client: Client, process: subprocess.Popen[str], paths: Paths, *, pty: bool
) -> Iterator[None]:
    """Whatever happens inside, the allocation and salloc are gone afterwards; a closed terminal ends it as Ctrl-C does.

    Args:
        pty: salloc has the terminal, whose signals (Ctrl-C, hang-up) reach it as they reach this process.
    """
    is_told = pty

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        del frame
        is_told = pty and number != signal.SIGTERM
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            _release(client, process, paths, is_told)


def _release(client: Client, process: subprocess.Popen[str], paths: Paths, is_told: bool) -> None:
    """Give the allocation back. If Slurm does not answer, or the user does not wait for it, salloc gives it back when it is ended.

    A salloc that waits for nodes takes its request back within the handler of the first signal. A
    second signal meanwhile has it wait for its own locks for ever (seen with 22.05), so one that
    was told is not told again.
    """
    try:
        number = _allocated(paths)
        if number is not None:
            client.cancel(number)
        elif not is_told:
            process.terminate()
        process.wait(_PATIENCE if number is not None or not is_told else _SHORT_PATIENCE)
    except (SlurmUnreachableError, SubmissionError, subprocess.TimeoutExpired, KeyboardInterrupt):
        process.terminate()
        try:
            process.wait(_SHORT_PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


def finish(client: Client, paths: Paths, decided: Plan, code: int) -> Outcome:
    """How a run at a terminal came out: with the exit code that salloc handed on, but where Slurm itself ended it."""
    submission = status.submission_of(paths)
    state = ended(client, paths, submission.job_id)
    if state is None or state.state in ("COMPLETED", "COMPLETING", "FAILED"):
        known = state or JobState(job_id=submission.job_id, state="COMPLETED")
        state = replace(known, state="FAILED" if code else "COMPLETED", exit_code=code, signal=0)
    return follow.finish(client, paths, decided, state)
