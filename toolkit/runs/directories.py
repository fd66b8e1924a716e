"""Directories of runs: the runs in them, a run by its name, and the index of those directories.

The index is a text file with a line for each directory in which the user has ever run something,
for `toolkit ps --all-directories` and job ids. No run fails because of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toolkit.errors import ConfigError, UnknownRunError
from toolkit.files import read_text
from toolkit.quoting import shell
from toolkit.runs.run import Run

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{4,})\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]+")
_JOB_ID = re.compile(r"(?P<job>[1-9]\d{0,9})(?:_\d+)?\Z")  # 4711, or an element of an array: 4711_3


def index() -> Path:
    """Return the file of the index, which may not exist.

    Raises:
        RuntimeError: the user has no home directory.
    """
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "toolkit/directories"


def known() -> tuple[Path, ...]:
    """Return the directories of the index that are there, each once."""
    directories: dict[tuple[int, int], Path] = {}
    with suppress(OSError, RuntimeError, ValueError):
        for line in read_text(index()).splitlines():
            with suppress(OSError, ValueError):  # removed, not mounted here, or a torn line
                directory = Path(str(json.loads(line)))
                status = directory.stat()
                directories.setdefault((status.st_dev, status.st_ino), directory)
    return tuple(sorted(directories.values()))


def remember(runs: Path) -> None:
    """Add a directory of runs to the index. Never fails: a full disk must not stop a run."""
    with suppress(OSError, RuntimeError, ValueError):
        if not any(runs.samefile(other) for other in known()):
            index().parent.mkdir(parents=True, exist_ok=True)
            # As one write at the end: other processes, of other hosts too, do the same.
            file = os.open(index(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, f"{json.dumps(str(runs.absolute()))}\n".encode())
            os.close(file)


def others(runs: Path) -> list[Path]:
    """Return the known directories of runs but this one."""
    return [other for other in known() if not (runs.is_dir() and other.samefile(runs))]


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


def all_runs(runs: Path) -> list[Run]:
    """Return every run in a directory of runs, the newest first."""
    return newest_first(Run(path) for path in _entries(runs) if _is_run(path))


def newest_first(runs: Iterable[Run]) -> list[Run]:
    """Sort runs by the time at which they were planned."""
    return sorted(runs, key=_planned, reverse=True)


def _planned(run: Run) -> float:
    with suppress(OSError):
        return (run.directory / "plan.json").stat().st_mtime
    return 0.0  # it is being removed


def _is_run(directory: Path) -> bool:
    """Return whether a directory is a run; the name of a run being removed begins with a dot."""
    return not directory.name.startswith(".") and _has_plan(directory)


def _has_plan(directory: Path) -> bool:
    with suppress(OSError):  # the directory is private to another user
        return (directory / "plan.json").is_file()
    return False


def find(name: str | None, runs: Path) -> Run:
    """Find a run by its name, its directory or its job id; without any of these, the newest run.

    A job id is looked for in all directories of runs that this user has, in this one first.

    Raises:
        UnknownRunError: with the nearest name.
    """
    own = all_runs(runs)
    if name is None and own:
        return own[0]
    if name is not None:
        for directory in (Path(name), runs / name):
            if _has_plan(directory):
                return Run(directory.resolve())
        if match := _JOB_ID.match(name):
            number = int(match["job"])
            elsewhere = newest_first(run for other in others(runs) for run in all_runs(other))
            # A new local cluster counts its jobs from 1 again: several runs may have the number.
            for run in (*own, *elsewhere):
                if _has_job(run, number):
                    return Run(run.directory.resolve())
    raise _unknown(name, runs, own)


def _has_job(run: Run, job_id: int) -> bool:
    with suppress(ConfigError):
        return run.job is not None and run.job.job_id == job_id
    return False


def _unknown(name: str | None, runs: Path, own: list[Run]) -> UnknownRunError:
    elsewhere = others(runs)
    same = [path / name for path in elsewhere if name and "/" not in name and _is_run(path / name)]
    where = f"in the directory {runs}"
    cause = f"there is no run {name!r} {where}" if name else f"there are no runs {where}"
    if name and _JOB_ID.match(name):
        cause = f"no run in {runs}, or in another directory of your runs, has job {name}"
    step = "toolkit ps --all-directories" if elsewhere else "toolkit run --help"
    if same:
        step = f"name it by its directory: {shell(same[0])}"
    elif own:
        step = "toolkit ps"
    return UnknownRunError(
        cause,
        place="RUN",
        choices=[run.name for run in own],
        value=name or "",
        next_step=step,
    )
