"""Run a script in an allocation of ``salloc`` that lives as long as this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from toolkit import shell
from toolkit.errors import SlurmUnreachableError, SubmissionError
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome, Submission, SubmissionAttempt
from toolkit.runs import once, parts, status
from toolkit.runs.finish import finish as finish_job
from toolkit.runs.store import Paths
from toolkit.shell import interrupted_by_signals
from toolkit.slurm.client import Client, without_job

_PAUSE = 0.1  # seconds between two checks for the number of the job
_PATIENCE = 60.0  # seconds for Slurm to clean up after the last process
_SHORT_PATIENCE = 10.0  # seconds for salloc to take its request back


def salloc_command(decided: Plan, script: str) -> tuple[str, ...]:
    """Return the command that gets the allocation and runs the script in it."""
    options = (
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in decided.sbatch_options
    )
    return ("salloc", *options, "bash", script)


def start(
    client: Client, paths: Paths, decided: Plan, cluster: str | None
) -> tuple[subprocess.Popen[str], SubmissionAttempt]:
    """Start salloc, and record that. With ``pty`` the script has the terminal, else no input.

    Without ``pty``, Ctrl-C reaches only this process.
    """
    prefix = client.access.prefix
    if prefix and decided.pty:
        # The program that enters the local cluster has the terminal, too: ended by Ctrl-C, it would
        # send salloc a second signal (_release).
        prefix = ("env", "--ignore-signal=INT", *prefix, "env", "--default-signal=INT")
    argv = (*prefix, *salloc_command(decided, str(paths.script)))
    stdin = None if decided.pty else subprocess.DEVNULL
    with once.begun(paths, decided.site, cluster) as (attempt, lock):
        process = shell.start(
            argv,
            env=without_job(os.environ),
            stdin=stdin,
            stdout=None,
            stderr=None,
            new_session=not decided.pty,
            pass_fds=(lock,),
        )
    return process, attempt


def granted(process: subprocess.Popen[str], paths: Paths, attempt: SubmissionAttempt) -> Submission:
    """Wait until the script has begun, and record the job's number.

    Raises:
        SubmissionError: there was no allocation; the run's directory was removed.
    """
    while (number := _allocated(paths)) is None:
        if process.poll() is not None and _allocated(paths) is None:
            shutil.rmtree(paths.directory)
            raise SubmissionError(
                f"no allocation: salloc ended with {process.returncode}; nothing was started",
                place="salloc",
                next_step="its message is above; toolkit cluster shows which nodes are free",
            )
        time.sleep(_PAUSE)
    return once.record(paths, attempt, number)


def _allocated(paths: Paths) -> int | None:
    """Return the job's number if the script has written it; the file exists before its content."""
    try:
        text = paths.allocation.read_text()
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") else None


def ended(client: Client, paths: Paths, decided: Plan, job_id: int) -> JobState | None:
    """Return the job's state once its script has ended, or None if Slurm has forgotten it."""
    until = time.monotonic() + _PATIENCE
    while True:
        state = client.jobs([job_id]).get(job_id)
        if (
            state is None
            or not parts.is_of(state, paths, decided)
            or state.ended
            or time.monotonic() > until
        ):
            return state
        time.sleep(_PAUSE)


@contextmanager
def released_after(
    client: Client, process: subprocess.Popen[str], paths: Paths, *, pty: bool
) -> Iterator[None]:
    """End salloc and give the allocation back on any exit; a closed terminal acts as Ctrl-C.

    Args:
        client: of the cluster.
        process: salloc.
        paths: of the run.
        pty: salloc has the terminal, whose signals (Ctrl-C, hang-up) reach it and this process.
    """
    received: list[int] = []
    try:
        with interrupted_by_signals() as received:
            yield
    finally:
        if process.poll() is None:
            is_signaled = pty and signal.SIGTERM not in received[-1:]
            _release(client, process, paths, is_signaled)


def _release(
    client: Client, process: subprocess.Popen[str], paths: Paths, is_signaled: bool
) -> None:
    """Give the allocation back.

    If Slurm does not answer, or the user does not wait, salloc gives it back when it is ended.

    A salloc that waits for nodes takes its request back within the handler of the first signal. A
    second signal meanwhile makes it wait for its own locks forever (observed with 22.05), so it
    never gets a second one.
    """
    try:
        number = _allocated(paths)
        if number is not None:
            client.cancel(number)
        elif not is_signaled:
            process.terminate()
        process.wait(_PATIENCE if number is not None or not is_signaled else _SHORT_PATIENCE)
    except (SlurmUnreachableError, SubmissionError, subprocess.TimeoutExpired, KeyboardInterrupt):
        process.terminate()
        try:
            process.wait(_SHORT_PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


def finish(client: Client, paths: Paths, decided: Plan, code: int) -> Outcome:
    """Derive and record the outcome of an interactive run.

    Its exit code is salloc's, unless Slurm itself ended the job.
    """
    submission = status.submission_of(paths)
    state = ended(client, paths, decided, submission.job_id)
    if state is None or state.state in ("COMPLETED", "COMPLETING", "FAILED"):
        known = state or JobState(job_id=submission.job_id, state="COMPLETED")
        state = replace(known, state="FAILED" if code else "COMPLETED", exit_code=code, signal=0)
    return finish_job(client, paths, decided, state)
