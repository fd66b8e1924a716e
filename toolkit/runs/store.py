"""Create, name and find run directories, such as ``runs/train-0007``.

A run directory holds the script, plan, logs and outcome of a run. Only ``Paths`` names its files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ConfigError, UnknownRunError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import to_json
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome, Submission
from toolkit.quoting import shell
from toolkit.runs.access import Log as Log
from toolkit.runs.access import RunDirectory
from toolkit.trust import require_trusted

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{4,})\Z")
# Whatever the umask is: a group may share a directory of runs, and only its owner writes to a run.
_RUNS_MODE, _RUN_MODE = 0o775, 0o755
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]+")
# The job of a part is that of a run in the same directory, and in no other.
_HOLDER = re.compile(r"\.\./(?!\.\.?/)(?P<name>[^/]+)/run\.json\Z")
_JOB_ID = re.compile(r"(?P<job>[1-9]\d{0,9})(?:_\d+)?\Z")  # 4711, or an element of an array: 4711_3


@dataclass(frozen=True)
class Paths(RunDirectory):
    """The files of one run."""

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.directory.name

    @property
    def word(self) -> str:
        """The name of the run, or its path where that is not below ./runs, for commands."""
        try:
            is_in_runs = self.directory.parent.samefile("runs")
        except OSError:
            is_in_runs = False
        is_option = self.name.startswith("-")
        return shlex.quote(
            self.name if is_in_runs and not is_option else os.path.relpath(self.directory)
        )

    @property
    def script(self) -> Path:
        """The script that sbatch gets."""
        return self.directory / "job.sbatch"

    @property
    def plan(self) -> Path:
        """The plan that the script is rendered from."""
        return self.directory / "plan.json"

    @property
    def job(self) -> Path:
        """The settings that the plan was made from, for running it again."""
        return self.directory / "job.json"

    @property
    def code(self) -> Path:
        """The record of the script, its commit and its changes."""
        return self.directory / "code.json"

    @property
    def code_tree(self) -> Path:
        """The snapshot of the work tree, if the run has one."""
        return self.directory / "code"

    @property
    def snapshot(self) -> Path:
        """The list of files in the snapshot."""
        return self.directory / "snapshot.json"

    @property
    def diff(self) -> Path:
        """The changes of the work tree since its commit."""
        return self.directory / "code.diff"

    @property
    def submission(self) -> Path:
        """The number of the job, once Slurm has it."""
        return self.directory / "run.json"

    @property
    def part(self) -> Path:
        """The times of a run that is a part of a larger allocation, written by that job."""
        return self.directory / "part.json"

    @property
    def is_part(self) -> bool:
        """Return whether the job is that of a larger allocation, and its submission a link."""
        return self.submission.is_symlink()

    @property
    def attempt(self) -> Path:
        """The record of a submission, for as long as it is not known whether Slurm has the job."""
        return self.directory / "attempt.json"

    @property
    def allocation(self) -> Path:
        """The number of a job that salloc got, written by its script."""
        return self.directory / "allocation"

    @property
    def outcome(self) -> Path:
        """The outcome, once the job has ended."""
        return self.directory / "outcome.json"

    @property
    def points(self) -> Path:
        """The folder of the points of a sweep, each in its own folder."""
        return self.directory / "points"

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.directory / "logs"

    @property
    def reports(self) -> Path:
        """The folder of failing processes' records, and of the module that writes them."""
        return self.directory / "report"

    @property
    def holder(self) -> Paths | None:
        """The run of the allocation that this run is a part of; None if it is no part."""
        match = _HOLDER.match(str(self.submission.readlink())) if self.is_part else None
        holder = match and Paths(self.directory.resolve().parent / match["name"])
        with suppress(OSError):
            if holder and holder.directory.stat().st_uid == self.directory.stat().st_uid:
                return holder
        return None

    def read_plan(self) -> Plan:
        """Return the plan."""
        return read_json(self.plan, Plan, below=self.directory)

    def read_submission(self) -> Submission | None:
        """Return the submission, or None if Slurm has no job of the run."""
        holder = self.holder or self
        return holder.read(holder.submission, Submission)

    def read_outcome(self) -> Outcome | None:
        """Return the outcome, or None if it is not known yet."""
        return self.read(self.outcome, Outcome)


def next_directory(runs: Path, name: str) -> Path:
    """Return the directory that the next run of this name will have."""
    safe = _UNSAFE.sub("-", name).strip("-.") or "run"
    numbers = [
        int(match["number"])
        for path in _entries(runs)
        if (match := _NUMBERED.match(path.name)) and match["name"] == safe
    ]
    return runs / f"{safe}-{max(numbers, default=0) + 1:04d}"


def _entries(runs: Path) -> Iterable[Path]:
    return runs.iterdir() if runs.is_dir() else ()


def create(directory: Path) -> bool:
    """Create a run's directory; return False if another process was faster.

    Raises:
        UntrustedError: another user could replace the directory; nothing was written.
        ConfigError: the directory of runs is a file, or a link to nothing.
    """
    from toolkit.runs import index

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
    Paths(directory).logs.mkdir(mode=_RUN_MODE)
    index.remember(directory.parent)
    return True


def write(directory: Path, plan: Plan, job: Job, script: str) -> Paths:
    """Write plan, settings and script of a run into its directory."""
    paths = Paths(directory)
    write_atomically(paths.plan, to_json(plan))
    write_atomically(paths.job, to_json(job))
    write_atomically(paths.script, script, mode=0o755)
    return paths


def all_runs(runs: Path) -> list[Paths]:
    """Return every run in a directory of runs, the newest first."""
    return newest_first(Paths(path) for path in _entries(runs) if _is_run(path))


def newest_first(runs: Iterable[Paths]) -> list[Paths]:
    """Sort runs by the time at which they were planned."""
    return sorted(runs, key=_planned, reverse=True)


def _planned(paths: Paths) -> float:
    try:
        return paths.plan.stat().st_mtime
    except OSError:  # it is being removed
        return 0.0


def _is_run(directory: Path) -> bool:
    """Return whether a directory is a run; the name of a run being removed begins with a dot."""
    return not directory.name.startswith(".") and _has_plan(directory)


def _has_plan(directory: Path) -> bool:
    with suppress(OSError):  # the directory is private to another user
        return (directory / "plan.json").is_file()
    return False


def find(name: str | None, runs: Path) -> Paths:
    """Find a run by its name, its directory or its job id; without any of these, the newest run.

    A job id is searched for in all directories of runs that this user has.

    Raises:
        UnknownRunError: with the nearest name.
    """
    known = all_runs(runs)
    if name is None and known:
        return known[0]
    if name is not None:
        for directory in (Path(name), runs / name):
            if _has_plan(directory):
                return Paths(directory.resolve())
        if match := _JOB_ID.match(name):
            run = _of_job(int(match["job"]), known, runs)
            if run is not None:
                return run
    raise _unknown(name, runs, known)


def _of_job(job_id: int, own: Iterable[Paths], runs: Path) -> Paths | None:
    """Find the newest run with a job id, in this directory first.

    A new local cluster counts its jobs from 1 again, so that several runs may have the number.
    """
    from toolkit.runs import index

    run = next((paths for paths in own if _has_job(paths, job_id)), None)
    if run is None:
        others = newest_first(
            paths for other in index.directories_except(runs) for paths in all_runs(other)
        )
        run = next((paths for paths in others if _has_job(paths, job_id)), None)
    return Paths(run.directory.resolve()) if run else None


def _has_job(paths: Paths, job_id: int) -> bool:
    try:
        submission = paths.read_submission()
    except ConfigError:
        return False
    return submission is not None and submission.job_id == job_id


def _unknown(name: str | None, runs: Path, known: list[Paths]) -> UnknownRunError:
    from toolkit.runs import index

    others = index.directories_except(runs)
    same = [other / name for other in others if name and "/" not in name and _is_run(other / name)]
    where = f"in the directory {runs}"
    cause = f"there is no run {name!r} {where}" if name else f"there are no runs {where}"
    if name and _JOB_ID.match(name):
        cause = f"no run in {runs}, or in another directory of your runs, has job {name}"
    elsewhere = "toolkit ps --all-directories" if others else "toolkit run --help"
    return UnknownRunError(
        cause,
        place="RUN",
        choices=[paths.name for paths in known],
        value=name or "",
        next_step=f"name it by its directory: {shell(same[0])}"
        if same
        else "toolkit ps"
        if known
        else elsewhere,
    )
