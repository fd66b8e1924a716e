"""Directories of runs: the runs in them, a run by its name, and the index of those directories.

The index is a file with each directory in which the user has ever run something, ended by a null
byte as no path has one, for `toolkit ps --all-directories` and job ids. No run fails because of it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import ConfigError, UnknownRunError
from toolkit.quoting import shell

if TYPE_CHECKING:
    from toolkit.runs.run import Run

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{4,})\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]+")
_JOB_ID = re.compile(r"(?P<job>[1-9]\d{0,9})(?:_\d+)?\Z")  # 4711, or an element of an array: 4711_3


def index() -> Path:
    """Return the file of the index, which may not exist."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "toolkit/directories"


def known() -> tuple[Path, ...]:
    """Return the directories of the index that are there, each once."""
    words: list[bytes] = []
    with suppress(OSError, RuntimeError):  # a user may have no home
        words = index().read_bytes().split(b"\0")
    directories = {Path(os.path.realpath(os.fsdecode(word))) for word in words if word[:1] == b"/"}
    return tuple(sorted(filter(os.path.isdir, directories)))


def remember(runs: Path) -> None:
    """Add a directory of runs to the index. Never fails: a full disk must not stop a run."""
    with suppress(OSError, RuntimeError):  # a user may have no home
        if runs.resolve() not in known():
            index().parent.mkdir(parents=True, exist_ok=True)
            # As one write at the end: other processes, of other hosts too, do the same.
            index().touch(0o600)
            with index().open("ab", buffering=0) as file:
                file.write(os.fsencode(runs.resolve()) + b"\0")


def others(runs: Path) -> list[Path]:
    """Return the known directories of runs but this one."""
    return [other for other in known() if other != runs.resolve()]


def next_directory(runs: Path, name: str) -> Path:
    """Return the directory that the next run of this name will have."""
    safe = _UNSAFE.sub("-", name).strip("-.") or "run"
    numbers = [
        int(match["number"])
        for path in (runs.iterdir() if runs.is_dir() else ())
        if (match := _NUMBERED.match(path.name)) and match["name"] == safe
    ]
    return runs / f"{safe}-{max(numbers, default=0) + 1:04d}"


def all_runs(*places: Path) -> list[Run]:
    """Return every run in directories of runs, the newest first.

    The name of a run that is being removed begins with a dot.
    """
    from toolkit.runs.run import Run  # a new run only asks for the next directory

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
    from toolkit.runs.run import Run

    own = all_runs(runs)
    if name is None and own:
        return own[0]
    for directory in (Path(name), runs / name) if name else ():
        if _planned(directory) >= 0:
            return Run(directory.resolve())
    match = _JOB_ID.match(name or "")
    # A new local cluster counts its jobs from 1 again: several runs may have the number.
    for run in (*own, *all_runs(*others(runs))) if match else ():
        with suppress(ConfigError):
            if match and run.job and run.job.job_id == int(match["job"]):
                return Run(run.directory.resolve())
    raise _unknown(name, runs, own)


def _unknown(name: str | None, runs: Path, own: list[Run]) -> UnknownRunError:
    elsewhere = others(runs)
    same = [path / name for path in elsewhere if name and _planned(path / name) >= 0]
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
