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
from toolkit.model.run import JobState, Outcome
from toolkit.runs.outcome import finish as finish_job
from toolkit.runs.run import Run
from toolkit.runs.submit import begun
from toolkit.shell import interrupted_by_signals
from toolkit.slurm.client import without_job

_PAUSE = 0.1  # seconds between two checks for the number of the job
_PATIENCE = 60.0  # seconds for Slurm to clean up after the last process
_SHORT_PATIENCE = 10.0  # seconds for salloc to take its request back


def salloc_command(plan: Plan, script: str) -> tuple[str, ...]:
    """Return the command that gets the allocation and runs the script in it."""
    options = (
        f"--{name}" if value is None else f"--{name}={value}" for name, value in plan.sbatch_options
    )
    return ("salloc", *options, "bash", script)


def start(run: Run, cluster: str | None) -> subprocess.Popen[str]:
    """Start salloc, and record that. With ``pty`` the script has the terminal, else no input.

    Without ``pty``, Ctrl-C reaches only this process.
    """
    pty = run.plan.pty
    with begun(run, cluster) as lock:
        prefix = run.client.access.prefix
        if prefix and pty:
            # The program that enters the local cluster has the terminal, too: ended by Ctrl-C, it
            # would send salloc a second signal (_release).
            prefix = ("env", "--ignore-signal=INT", *prefix, "env", "--default-signal=INT")
        return shell.start(
            (*prefix, *salloc_command(run.plan, str(run.script))),
            env=without_job(os.environ),
            stdin=None if pty else subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            new_session=not pty,
            pass_fds=(lock,),
        )


def wait_for_nodes(run: Run, process: subprocess.Popen[str]) -> None:
    """Wait until the script has begun, and record the job's number.

    Raises:
        SubmissionError: there was no allocation; the run's directory was removed.
    """
    while (number := allocated(run)) is None:
        if process.poll() is not None and allocated(run) is None:
            shutil.rmtree(run.directory)
            raise SubmissionError(
                f"no allocation: salloc ended with {process.returncode}; nothing was started",
                place="salloc",
                next_step="its message is above; toolkit cluster shows which nodes are free",
            )
        time.sleep(_PAUSE)
    run.record(number)


def allocated(run: Run) -> int | None:
    """Return the job's number if the script has written it; the file exists before its content."""
    try:
        text = (run.directory / "allocation").read_text()
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") else None


@contextmanager
def released_after(run: Run, process: subprocess.Popen[str]) -> Iterator[None]:
    """End salloc and give the allocation back on any exit; a closed terminal acts as Ctrl-C."""
    received: list[int] = []
    try:
        with interrupted_by_signals() as received:
            yield
    finally:
        if process.poll() is None:
            # With a pty salloc has the terminal, whose signals (Ctrl-C, hang-up) reach it, too.
            _release(run, process, run.plan.pty and signal.SIGTERM not in received[-1:])


def _release(run: Run, process: subprocess.Popen[str], is_signaled: bool) -> None:
    """Give the allocation back.

    If Slurm does not answer, or the user does not wait, salloc gives it back when it is ended.

    A salloc that waits for nodes takes its request back within the handler of the first signal. A
    second signal meanwhile makes it wait for its own locks forever (observed with 22.05), so it
    never gets a second one.
    """
    try:
        number = allocated(run)
        if number is not None:
            run.client.cancel(number)
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


def finish(run: Run, code: int) -> Outcome:
    """Derive and record the outcome of an interactive run.

    Its exit code is salloc's, unless Slurm itself ended the job.
    """
    until = time.monotonic() + _PATIENCE
    while (state := run.state()) and not state.ended and time.monotonic() < until:
        time.sleep(_PAUSE)
    if state is None or state.state in ("COMPLETED", "COMPLETING", "FAILED"):
        known = state or JobState(job_id=run.job_id, state="COMPLETED")
        state = replace(known, state="FAILED" if code else "COMPLETED", exit_code=code, signal=0)
    return finish_job(run, state)
