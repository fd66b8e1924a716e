"""A run: the directory of a job, such as ``runs/train-0007``, and that job in Slurm.

Another user may have made the directory. What is in it is opened through no symbolic link, is
bounded, and is checked against a model; only into a run of the caller anything is written.

The directories of runs are in an index: a file with each directory in which the user has ever run
something, ended by a null byte as no path has one, for `toolkit ps --all-directories` and job ids.
No run fails because of it.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from toolkit.errors import (
    ConfigError,
    ForbiddenError,
    SlurmUnreachableError,
    ToolkitError,
    UnknownRunError,
    UnrecordedError,
)
from toolkit.files import open_regular, read_json, write_atomically
from toolkit.localcluster.access import access
from toolkit.model.base import AnyModel, to_json
from toolkit.model.run import JobState, Outcome, Plan, Submission
from toolkit.model.site import Access
from toolkit.slurm import queue
from toolkit.slurm.client import Client
from toolkit.trust import require_trusted

SECRETS = "secrets"  # that the job's script reads; only the owner of the run can
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOG = re.compile(
    r"(?P<job>\d+)(?:_(?P<element>\d+))?(?:\.(?P<restart>\d+))?(?:-(?P<task>\d+)-(?P<host>.+))?\.log\Z"
)


class Log(NamedTuple):
    """One log of a job: of the batch shell (no host), or of one task.

    ``element`` is the number in a job array. A requeued job has logs of its tasks for each
    ``attempt``, from 1; its batch shell has one for all attempts.
    """

    path: Path
    task: int | None
    host: str
    element: int | None = None
    attempt: int = 1

    @property
    def size(self) -> int:
        """The size in bytes; 0 if it has gone."""
        with suppress(OSError):
            return self.path.lstat().st_size
        return 0

    def open(self) -> BinaryIO:
        """Open the log, which may be anything that another user has put there.

        Raises:
            OSError: it is not a regular file in the run's own folder, or cannot be read.
        """
        return open_regular(self.path, below=self.path.parent.parent)


def client_of(cluster: str | None) -> Client:
    """Return the client of a local cluster, or without a name of the Slurm on this machine.

    Raises:
        SlurmUnreachableError: it is a local cluster that is not up.
    """
    return Client(access(cluster) if cluster else Access())


class Run:
    """The directory of a run, of which each file is read at most once.

    Attributes:
        directory: of the run.
        name: of the run and its directory.
        script: what sbatch gets.
        logs: folder of the logs.
        reports: folder of what the ranks' Pythons write, and of the module that writes it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.name = directory, directory.name
        self.script = directory / "job.sbatch"
        self.logs, self.reports = directory / "logs", directory / "report"

    @property
    def word(self) -> str:
        """The name of the run, or its path where that is not below ./runs, for commands."""
        above = os.path.realpath(self.directory.parent)
        is_plain = above == os.path.realpath("runs") and not self.name.startswith("-")
        return shlex.quote(self.name if is_plain else os.path.relpath(self.directory))

    @cached_property
    def plan(self) -> Plan:
        """The plan that the script was rendered from."""
        return read_json(self.directory / "plan.json", Plan, below=self.directory)

    @cached_property
    def job(self) -> Submission | None:
        """The job; without a number where it is not known whether Slurm has it. None: no job.

        An attempt of another user may not be read.
        """
        submitted = self.read("run.json", Submission)
        if submitted is None and self.is_own:
            return self.read("attempt.json", Submission)
        return submitted

    @cached_property
    def outcome(self) -> Outcome | None:
        """The outcome; None if it is not known how the run came out."""
        return self.read("outcome.json", Outcome)

    @cached_property
    def secrets(self) -> dict[str, str]:
        """The secret variables of the run, to repeat it; none if the caller did not write them."""
        try:
            with open_regular(self.directory / SECRETS, below=self.directory) as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return {}
                text = file.read().decode()  # a carriage return belongs to its value
            prefix = self.plan.container.prefix
        except (OSError, ValueError, ConfigError):
            return {}
        words = (word.removeprefix(prefix).partition("=") for word in shlex.split(text))
        return {name: value for name, equals, value in words if equals}

    @property
    def has_ended(self) -> bool:
        """Return whether it is recorded how the run came out."""
        return (self.directory / "outcome.json").is_file()

    @cached_property
    def client(self) -> Client:
        """The client of the cluster that the job was submitted to.

        Raises:
            SlurmUnreachableError: it is a local cluster that is not up.
        """
        return client_of(self.job.cluster if self.job else None)

    @property
    def job_id(self) -> int:
        """The number of the job in Slurm.

        Raises:
            SlurmUnreachableError: the run was never submitted, or Slurm does not answer.
        """
        number = self.find()
        if number is None:
            cause = f"the run {self.name} was never submitted"
            raise SlurmUnreachableError(cause, place=str(self.directory))
        return number

    @property
    def number(self) -> int:
        """The recorded number of the job; 0 if none is."""
        return (self.job.job_id if self.job else None) or 0

    @property
    def is_own(self) -> bool:
        """Return whether the run belongs to the caller, and no other user can exchange it."""
        with suppress(ToolkitError, OSError):
            self.require_own()
            return True
        return False

    def require_own(self) -> None:
        """Check that no other user wrote the run, or can exchange it while it is used.

        Raises:
            ForbiddenError: it belongs to another user, who may have written any number.
            UntrustedError: another user could exchange it.
            UnknownRunError: it has been removed.
        """
        try:
            owner = self.directory.stat().st_uid
        except OSError as error:
            cause = f"{self.name} cannot be used: {error.strerror}"
            place = str(self.directory)
            raise UnknownRunError(cause, place=place, next_step="toolkit ps") from None
        if owner != os.geteuid():
            raise ForbiddenError(
                f"{self.name} belongs to another user: only its owner ends it, "
                "removes it or asks its ranks",
                place=str(self.directory),
                next_step="see whose it is: ls -ld; a job of your own: scancel JOB",
            )
        require_trusted(self.directory)

    def read(self, name: str, model: type[AnyModel]) -> AnyModel | None:
        """Read a JSON file of the run; return None if there is none.

        Raises:
            ConfigError: it is not a regular file, or does not fit the model.
        """
        try:
            return read_json(self.directory / name, model, below=self.directory)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder of the run; none if there is no such folder.

        Raises:
            OSError: it cannot be read, or is a symbolic link.
        """
        try:
            handle = os.open(folder, _DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(handle)  # noqa: PTH208 - pathlib takes no descriptor
        finally:
            os.close(handle)

    def logs_of(self, job_id: int) -> list[Log]:
        """Return the logs of a job: the batch shell's first, then by task.

        Raises:
            ConfigError: their folder is not one, or cannot be read.
        """
        try:
            names = self.names(self.logs)
        except OSError as error:
            raise ConfigError(
                f"{self.logs} cannot be read: {error.strerror}",
                place=str(self.logs),
                next_step="see what it is: ls -ld",
            ) from None
        logs = [
            Log(
                self.logs / match.string,
                int(match["task"]) if match["task"] else None,
                match["host"] or "",
                int(match["element"]) if match["element"] else None,
                int(match["restart"] or 0) + 1,
            )
            for match in filter(None, map(_LOG.match, names))
            if int(match["job"]) == job_id
        ]
        return sorted(
            logs,
            key=lambda log: (log.element or 0, log.task is not None, log.attempt, log.task or 0),
        )

    def find(self, known: queue.Snapshot | None = None) -> int | None:
        """Return the number of the job; one that is not known is looked for by the run's script.

        It is recorded then. Slurm is not asked for what another user's run names.

        Args:
            known: the jobs in the queue; None: Slurm is asked for them.

        Raises:
            SlurmUnreachableError: Slurm does not answer.
            UnrecordedError: Slurm has the job, and its number cannot be recorded.
        """
        if self.job is None or self.number or not self.is_own:
            return self.number or None
        number = self.client.find(self._submitted, self.job.began, known)
        if number is not None:
            self.record(number)
        return number

    def record(self, job_id: int) -> None:
        """Record which job the run is.

        Raises:
            UnrecordedError: the directory cannot be written; the record of the attempt stays there.
        """
        assert self.job is not None
        submission = replace(self.job, job_id=job_id)
        try:
            write_atomically(self.directory / "run.json", to_json(submission))
        except OSError as error:
            raise UnrecordedError(
                f"job {job_id} is queued, but cannot be recorded: {error.strerror}",
                place=str(self.directory),
                next_step="make room there, then: toolkit ps, which finds the job by its script",
            ) from error
        self.job = submission
        with suppress(OSError):  # the record counts, an attempt beside it does not
            (self.directory / "attempt.json").unlink()

    def state(self, known: queue.Snapshot | None = None) -> JobState | None:
        """Return the state of the job in Slurm; None if Slurm has no job of the run.

        Args:
            known: the jobs in the queue; None: Slurm is asked.

        Raises:
            SlurmUnreachableError: Slurm does not answer.
        """
        number = self.find(known)
        if number is None:
            return None
        state = (known.states if known else self.client.jobs([number])).get(number)
        # A new local cluster counts its jobs from 1 again. The job of salloc has no script.
        command = state.command if state else ""
        return None if command and not queue.is_command_of(command, self._submitted) else state

    @property
    def _submitted(self) -> str:
        """The script as sbatch got it: the directory may have been moved since."""
        return f"{self.plan.run_directory}/job.sbatch"


# Directories of runs: the runs in them, a run by its name, and the index of those directories.

_JOB_ID = re.compile(r"(?P<job>[1-9]\d{0,9})(?:_\d+)?\Z")  # 4711, or an element of an array: 4711_3


def index_file() -> Path:
    """Return the file of the index, which may not exist."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "toolkit/directories"


def known_directories() -> tuple[Path, ...]:
    """Return the directories of the index that are there, each once."""
    words: list[bytes] = []
    with suppress(OSError, RuntimeError):  # a user may have no home
        words = index_file().read_bytes().split(b"\0")
    directories = {Path(os.path.realpath(os.fsdecode(word))) for word in words if word[:1] == b"/"}
    return tuple(sorted(filter(os.path.isdir, directories)))


def remember(runs: Path) -> None:
    """Add a directory of runs to the index. Never fails: a full disk must not stop a run."""
    with suppress(OSError, RuntimeError):  # a user may have no home
        if runs.resolve() not in known_directories():
            index_file().parent.mkdir(parents=True, exist_ok=True)
            # As one write at the end: other processes, of other hosts too, do the same.
            index_file().touch(0o600)
            with index_file().open("ab", buffering=0) as file:
                file.write(os.fsencode(runs.resolve()) + b"\0")


def other_directories(runs: Path) -> list[Path]:
    """Return the known directories of runs but this one."""
    return [other for other in known_directories() if other != runs.resolve()]


def all_runs(*places: Path) -> list[Run]:
    """Return every run in directories of runs, the newest first.

    The name of a run that is being removed begins with a dot.
    """
    planned = {path: _planned(path) for place in places for path in place.glob("[!.]*")}
    runs = [path for path, when in planned.items() if when >= 0]
    return [Run(path) for path in sorted(runs, key=lambda path: planned[path], reverse=True)]


def _planned(directory: Path) -> float:
    """Return when a run was planned; -1 if the directory is none, or is another user's own."""
    with suppress(OSError, ValueError):  # a name may hold any character
        return (directory / "plan.json").stat().st_mtime
    return -1.0


def find(name: str | None, runs: Path) -> Run:
    """Find a run by its name, its directory or its job id; without any of these, the newest run.

    A job id is looked for in all directories of runs that this user has, in this one first.

    Raises:
        UnknownRunError: with the nearest name.
    """
    own = all_runs(runs)
    if name is None and own:
        return own[0]
    for directory in (Path(name), runs / name) if name else ():
        if _planned(directory) >= 0:
            return Run(directory.resolve())
    match = _JOB_ID.match(name or "")
    # A new local cluster counts its jobs from 1 again: several runs may have the number.
    for run in (*own, *all_runs(*other_directories(runs))) if match else ():
        with suppress(ConfigError):
            if match and run.job and run.job.job_id == int(match["job"]):
                return Run(run.directory.resolve())
    raise _unknown(name, runs, own)


def _unknown(name: str | None, runs: Path, own: list[Run]) -> UnknownRunError:
    cause = f"there {f'is no run {name!r}' if name else 'are no runs'} in the directory {runs}"
    if name and _JOB_ID.match(name):
        cause = f"no run in {runs}, or in another directory of your runs, has job {name}"
    return UnknownRunError(
        cause,
        place="RUN",
        choices=[run.name for run in own],
        value=name or "",
        next_step="toolkit ps --all-directories" if other_directories(runs) else "toolkit ps",
    )
