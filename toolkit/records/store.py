"""Run directories: ``runs/train-0007`` holds a run's script, plan, logs and outcome. ``Paths`` is the only place that names its files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ConfigError, ForbiddenError, UnknownRunError
from toolkit.files import read_json, write_atomically
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome, Submission
from toolkit.quoting import shell

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{4,})\Z")
_LOG = re.compile(
    r"(?P<job>\d+)(?:_(?P<element>\d+))?(?:\.(?P<restart>\d+))?(?:-(?P<task>\d+)-(?P<host>.+))?\.log\Z"
)
_MODE = 0o775  # never writable for everybody, whatever the umask says
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]+")
_JOB_ID = re.compile(r"(?P<job>[1-9]\d{0,9})(?:_\d+)?\Z")  # 4711, or an element of an array: 4711_3


@dataclass(frozen=True)
class Log:
    """One log of a job: of the batch shell (no host), or of one task; ``element`` is the number in a job array.

    A job that goes back into the queue has logs of its tasks for each ``attempt``, from 1; its
    batch shell has one for all.
    """

    path: Path
    job_id: int
    task: int | None
    host: str
    element: int | None = None
    attempt: int = 1


@dataclass(frozen=True)
class Paths:
    """The files of one run."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def word(self) -> str:
        """What to type for this run in the current directory: its name, or where it is."""
        try:
            is_here = self.directory.parent.samefile("runs")
        except OSError:
            is_here = False
        return self.name if is_here else shell(os.path.relpath(self.directory))

    @property
    def script(self) -> Path:
        return self.directory / "job.sbatch"

    @property
    def plan(self) -> Path:
        return self.directory / "plan.json"

    @property
    def job(self) -> Path:
        """The settings that the plan was made from, for running it again."""
        return self.directory / "job.json"

    @property
    def code(self) -> Path:
        """Which code the run is of."""
        return self.directory / "code.json"

    @property
    def code_tree(self) -> Path:
        """The snapshot of the work tree, if the run has one."""
        return self.directory / "code"

    @property
    def snapshot(self) -> Path:
        """What the snapshot holds."""
        return self.directory / "snapshot.json"

    @property
    def diff(self) -> Path:
        """How the code differs from its commit."""
        return self.directory / "code.diff"

    @property
    def submission(self) -> Path:
        return self.directory / "run.json"

    @property
    def attempt(self) -> Path:
        """There as long as it is not known whether Slurm has the job."""
        return self.directory / "attempt.json"

    def claim(self, mark: str) -> Path:
        """A symbolic link to the number of the job that does the work, of all jobs that were submitted with one mark."""
        return self.directory / f".{mark}"

    @property
    def allocation(self) -> Path:
        """The number of a job that salloc got, written by its script."""
        return self.directory / "allocation"

    @property
    def outcome(self) -> Path:
        return self.directory / "outcome.json"

    @property
    def points(self) -> Path:
        """A folder for each point of a sweep."""
        return self.directory / "points"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def reports(self) -> Path:
        """Records of failing processes, and the module that writes them."""
        return self.directory / "report"

    def logs_of(self, job_id: int) -> list[Log]:
        """The logs of a job: the batch shell's first, then by task."""
        found = []
        for path in self.logs.glob(f"{job_id}*.log"):
            match = _LOG.match(path.name)
            if match and int(match["job"]) == job_id:
                element = int(match["element"]) if match["element"] else None
                task, attempt = (
                    int(match["task"]) if match["task"] else None,
                    int(match["restart"] or 0) + 1,
                )
                found.append(Log(path, job_id, task, match["host"] or "", element, attempt))
        return sorted(
            found,
            key=lambda log: (log.element or 0, log.task is not None, log.attempt, log.task or 0),
        )

    def read_submission(self) -> Submission | None:
        return read_json(self.submission, Submission) if self.submission.is_file() else None

    def read_outcome(self) -> Outcome | None:
        return read_json(self.outcome, Outcome) if self.outcome.is_file() else None


def next_directory(runs: Path, name: str) -> Path:
    """The directory that the next run of this name will have; it is not made."""
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
    """Make a run's directory; False where somebody else was faster.

    Raises:
        ForbiddenError: another user could put something else in its place.
    """
    from toolkit.records import index

    directory.parent.mkdir(mode=_MODE, parents=True, exist_ok=True)
    _own(directory.parent)
    try:
        directory.mkdir(mode=_MODE)
    except FileExistsError:
        return False
    Paths(directory).logs.mkdir()
    index.remember(directory.parent)
    return True


def _own(runs: Path) -> None:
    """Refuse a directory of runs that leads where another user wants it to, or in which everybody may exchange what others made."""
    link, target = runs.lstat(), runs.stat()
    ours = (0, os.geteuid())
    anybody = (
        runs.absolute().parent.stat().st_mode & stat.S_IWOTH
    )  # such as /tmp: who comes first has the name
    if (stat.S_ISLNK(link.st_mode) and link.st_uid not in ours) or (
        anybody and target.st_uid not in ours
    ):
        raise ForbiddenError(
            f"another user made {runs}", place="runs", next_step="run from a directory of yours"
        )
    if target.st_mode & stat.S_IWOTH and not target.st_mode & stat.S_ISVTX:
        raise ForbiddenError(
            f"everybody may exchange what is in {runs}: scripts of jobs, too",
            place="runs",
            next_step=f"chmod o-w {runs}",
        )


def write(directory: Path, plan: Plan, job: Job, script: str) -> Paths:
    """Fill a run's directory with all that is known before it is submitted."""
    from toolkit.model.base import to_json

    paths = Paths(directory)
    write_atomically(paths.plan, to_json(plan))
    write_atomically(paths.job, to_json(job))
    write_atomically(paths.script, script, mode=0o755)
    return paths


def all_runs(runs: Path) -> list[Paths]:
    """Every run in a directory of runs, the newest first."""
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
    """Return whether a directory is a run; the name of one that is being removed begins with a dot."""
    return not directory.name.startswith(".") and (directory / "plan.json").is_file()


def find(name: str | None, runs: Path) -> Paths:
    """Find a run by its name, its directory or its job id; without any of these, the newest run.

    A job id is looked for in all directories of runs that this user has.

    Raises:
        UnknownRunError: with the nearest name.
    """
    known = all_runs(runs)
    if name is None and known:
        return known[0]
    if name is not None:
        for directory in (Path(name), runs / name):
            if (directory / "plan.json").is_file():
                return Paths(directory.resolve())
        if match := _JOB_ID.match(name):
            found = _of_job(int(match["job"]), known, runs)
            if found is not None:
                return found
    raise _unknown(name, runs, known)


def _of_job(job_id: int, here: Iterable[Paths], runs: Path) -> Paths | None:
    """Find the newest run with a job id, in this directory first: a new local cluster counts from 1 again."""
    from toolkit.records import index

    found = next((paths for paths in here if _has_job(paths, job_id)), None)
    if found is None:
        others = newest_first(
            paths for other in index.directories_except(runs) for paths in all_runs(other)
        )
        found = next((paths for paths in others if _has_job(paths, job_id)), None)
    return Paths(found.directory.resolve()) if found else None


def _has_job(paths: Paths, job_id: int) -> bool:
    try:
        submission = paths.read_submission()
    except ConfigError:
        return False
    return submission is not None and submission.job_id == job_id


def _unknown(name: str | None, runs: Path, known: list[Paths]) -> UnknownRunError:
    from toolkit.records import index

    others = index.directories_except(runs)
    same = [other / name for other in others if name and "/" not in name and _is_run(other / name)]
    what = (
        f"job {name}: no run in {runs}, or in another directory that is known, has it"
        if name and _JOB_ID.match(name)
        else ""
    )
    elsewhere = "toolkit ps --all-directories" if others else "toolkit run --help"
    return UnknownRunError(
        what or (f"there is no run {name!r} in {runs}" if name else f"there are no runs in {runs}"),
        place="RUN",
        choices=[paths.name for paths in known],
        value=name or "",
        next_step=f"name it by its directory: {shell(same[0])}"
        if same
        else "toolkit ps"
        if known
        else elsewhere,
    )
