"""Write the directory of a planned run, and submit its job once.

sbatch is never called again where Slurm may have the job. Only a controller that was not reached is
asked again. If the answer of sbatch is lost, Slurm is searched for the path of the run's script,
which no other run has. As long as it is not known whether Slurm has the job, ``attempt.json`` is in
the run's directory, and the next `toolkit ps`, `toolkit logs` or `toolkit run` searches again.
sbatch inherits the lock of that file, so that everyone sees that it still works, even without the
process that started it. An interactive run has an allocation of salloc instead, which ends with
this process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from toolkit import launchers, quoting, runtimes, scripts, shell
from toolkit.config import package_directory
from toolkit.errors import ConfigError, SlurmUnreachableError, SubmissionError
from toolkit.files import open_regular, write_atomically
from toolkit.images.store import usage
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.job import Job, is_url
from toolkit.model.run import JobState, Outcome, Plan, Submission
from toolkit.runs import code
from toolkit.runs.outcome import finish
from toolkit.runs.run import SECRETS, Run, remember
from toolkit.slurm.client import AnswerLostError, Wait, patiently, without_job
from toolkit.text import shows
from toolkit.trust import require_trusted

# Seconds before each search for a job that a busy controller may accept late.
_PAUSES = (0.0, 1.0, 2.0, 3.0)
# Whatever the umask is: a group may share a directory of runs, and only its owner writes to a run.
_RUNS_MODE, _RUN_MODE = 0o775, 0o755
_NOTIFY = "notify"  # the URL that gets the end of the job; only the owner can read it


def reserve(directory: Path) -> bool:
    """Create a run's directory; return False if another process was faster.

    Raises:
        UntrustedError: another user could replace the directory; nothing was written.
        ConfigError: the directory of runs is a file, or a link to nothing.
    """
    if os.path.lexists(directory):
        return False
    try:
        require_trusted(directory)
        directory.parent.mkdir(mode=_RUNS_MODE, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"{directory.parent} is not a directory",
            place="runs",
            next_step="remove it, or name another directory: export TOOLKIT_RUNS=DIR",
        ) from error
    require_trusted(directory)  # where all users may write, another was perhaps faster
    try:
        directory.mkdir(mode=_RUN_MODE)
    except FileExistsError:
        return False
    (directory / "logs").mkdir(mode=_RUN_MODE)
    remember(directory.parent)
    return True


def fill(plan: Plan, case: Case) -> Run:
    """Write the files of a run into its directory, which is removed if that fails."""
    run = Run(Path(plan.run_directory))
    try:
        values = {name: case.job.env[name] for name in plan.secrets}
        if values or launchers.get(plan.launch.launcher).is_server or shows(case.job.arguments):
            run.directory.chmod(0o700)
        if plan.reports:
            run.reports.mkdir(mode=0o700)
            hook = package_directory("scripts") / "report" / "sitecustomize.py"
            shutil.copyfile(hook, run.reports / hook.name)
        if plan.notify and is_url(case.job.notify):
            line = f'url = "{case.job.notify}"\n'  # as curl reads it; it may have a token
            write_atomically(run.directory / _NOTIFY, line, mode=0o600)
        if values:
            write_secrets(run, plan.container.prefix, values)
        write(run, plan, repeatable(case, plan))
        tree, folder = case.tree, case.target.folder
        if tree is not None:
            code.copy(run, tree, case.target.cwd, folder)
        if tree is None or not tree.is_copy:
            code.record(run, case.script_file, Path(folder), values.values())
    except BaseException:
        shutil.rmtree(run.directory)
        raise
    return run


def write_secrets(run: Run, prefix: str, values: Mapping[str, str]) -> None:
    """Write variables for the job's script, which only the owner can read.

    Plan, settings, logs and dry runs have only the names.

    Args:
        run: that gets them.
        prefix: of a variable's name, by which it reaches the ranks.
        values: of the variables, by name.
    """
    lines = (
        f"export {prefix}{name}={quoting.shell(value)}\n" for name, value in sorted(values.items())
    )
    write_atomically(run.directory / SECRETS, "".join(lines), mode=0o600)


def write(run: Run, plan: Plan, job: Job) -> None:
    """Write plan, settings and script of a run into its directory.

    The plan comes first: a run whose submission is killed is listed, and can be removed.
    """
    run.plan = plan
    write_atomically(run.directory / "plan.json", to_json(plan))
    write_atomically(run.directory / "job.json", to_json(job))
    write_atomically(run.script, scripts.script(plan), mode=0o755)


def repeatable(case: Case, plan: Plan) -> Job:
    """Return the settings that repeat a run, without values of secrets and dependencies."""
    target = case.target
    script = target.script if target.is_program else str(Path(target.folder) / target.name)
    if case.tree is not None and case.tree.is_copy:
        script = case.job.script or script  # of the work tree, which --no-snapshot runs
    values = {name: value for name, value in case.job.env.items() if name not in plan.secrets}
    url = f"@{plan.run_directory}/{_NOTIFY}" if is_url(case.job.notify) else case.job.notify
    return replace(case.job, script=script, after=(), env=values, pass_env=(), notify=url)


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
        except (SubmissionError, SlurmUnreachableError) as error:
            name = f"{run.directory.parent.name}/{run.name}"
            again = f"the script is kept; submit it again: toolkit run {name}"
            if isinstance(error, SubmissionError):
                message = "; ".join((error.cause, *error.details))
                run.outcome = Outcome(
                    state="REFUSED",
                    kind="refused",
                    exit_code=error.exit_code,
                    seconds=0.0,
                    message=message,
                )
                write_atomically(run.directory / "outcome.json", to_json(run.outcome))
            error.details = (*error.details, again)
            (run.directory / "attempt.json").unlink(missing_ok=True)
            run.job = None
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


_CHECK_SECONDS = 0.1  # seconds between two checks for the number of the job
_PATIENCE = 60.0  # seconds for Slurm to clean up after the last process
_SHORT_PATIENCE = 10.0  # seconds for salloc to take its request back


# A script in an allocation of salloc that lives as long as this process.


def salloc_command(plan: Plan, script: str) -> tuple[str, ...]:
    """Return the command that gets the allocation and runs the script in it."""
    options = (
        f"--{name}" if value is None else f"--{name}={value}" for name, value in plan.sbatch_options
    )
    return ("salloc", *options, "bash", script)


def start_salloc(run: Run, cluster: str | None) -> subprocess.Popen[str]:
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
        time.sleep(_CHECK_SECONDS)
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
        with shell.interrupted_by_signals() as received:
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


def finish_salloc(run: Run, code: int) -> Outcome:
    """Derive and record the outcome of an interactive run.

    Its exit code is salloc's, unless Slurm itself ended the job.
    """
    until = time.monotonic() + _PATIENCE
    while (state := run.state()) and not state.ended and time.monotonic() < until:
        time.sleep(_CHECK_SECONDS)
    if state is None or state.state in ("COMPLETED", "COMPLETING", "FAILED"):
        known = state or JobState(job_id=run.job_id, state="COMPLETED")
        state = replace(known, state="FAILED" if code else "COMPLETED", exit_code=code, signal=0)
    return finish(run, state)
