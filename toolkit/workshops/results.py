"""The directory of results: what participants' runs leave there, and what the instructor reads.

Each participant owns one file in it, which holds states and accuracies and nothing else. Others
cannot list the directory, and the sticky bit keeps them from replacing a file. The instructor reads
files that any user could have written, so each is read without following links, up to a small
size, and counts only if its owner is the user whom it names.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.errors import (
    ConfigError,
    ForbiddenError,
    ScriptMissingError,
    UntrustedError,
    UsageError,
)
from toolkit.files import open_regular, read_json, temporary_beside
from toolkit.model.base import BadDataError, from_json, to_json
from toolkit.runs import forward
from toolkit.runs.directories import all_runs
from toolkit.runs.run import Run
from toolkit.units import counted
from toolkit.workshops.model import CONTENTS, JOINED, SIGNATURE, Done, Joined, Results

_MOST = 64 << 10
_MOST_UNREAD = 200
_NOTEBOOK_ENDS = ("cancelled", "timeout")  # not one that Slurm or the server ended
_MODE = 0o3733  # sticky and with the instructor's group; participants cannot list it
_MARKER = ".toolkit-workshop"


class Unread(NamedTuple):
    """An entry of the directory that does not count, and why."""

    name: str
    why: str


def leave(directory: Path) -> Path | None:
    """Write the results of the runs in a joined directory, if its owner shares them.

    Raises:
        UntrustedError: another user owns the file of this participant, or could have joined here.
        ForbiddenError: the directory of results is closed, or cannot be written.
    """
    joined = read_json(directory / JOINED, Joined, searched=True)  # it holds the consent
    if not joined.results:
        return None
    name = pwd.getpwuid(os.geteuid()).pw_name
    target = Path(joined.results) / f"{name}.json"
    done = collect(joined.exercises, all_runs(directory / "runs"))
    try:
        owner = target.lstat().st_uid if os.path.lexists(target) else os.geteuid()
        if owner != os.geteuid():
            raise UntrustedError(
                f"the file with your results belongs to user {_user(owner)}",
                place=str(target),
                next_step=f"ask the instructor for: toolkit workshop reset {name}",
            )
        for exercise, before in _left_before(target, joined.name).items():
            # Of another directory perhaps; runs of one directory are counted once.
            done[exercise] = max(
                done.get(exercise, before), before, key=lambda d: (_rank(d), d.tries)
            )
        _replace(target, to_json(Results(name=name, workshop=joined.name, exercises=done)))
    except OSError as error:
        cause = f"the results of the workshop cannot be left: {error.strerror}"
        place, step = target, "tell the instructor; your runs are not affected"
        if isinstance(error, FileNotFoundError):
            cause = "the workshop takes no results: it was closed, or is not open yet"
            place, step = target.parent, "ask the instructor; your runs are not affected"
        raise ForbiddenError(cause, place=str(place), next_step=step) from None
    return target


def _left_before(target: Path, workshop: str) -> dict[str, Done]:
    try:
        return _read(target.parent, target.name, workshop).exercises
    except (OSError, ValueError):
        return {}


def _rank(done: Done) -> tuple[bool, float]:
    return done.state == "ok", done.accuracy or 0.0


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _replace(target: Path, text: str) -> None:
    """Write the file of a participant; a directory of results that was closed is not made again."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            # The group is the instructor's, by the directory. By the handle, since the directory's
            # owner can exchange the name for a link.
            os.fchmod(handle, 0o640)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def collect(exercises: Iterable[str], runs: Iterable[Run]) -> dict[str, Done]:
    """Return the best result of each exercise among the runs that have ended."""
    names = set(exercises)
    best: dict[str, Done] = {}
    for run in runs:
        name = run.name.rpartition("-")[0]
        try:
            outcome = run.outcome if name in names else None
        except ConfigError:
            outcome = None  # of another version of the toolkit
        if outcome is None:
            continue
        state, accuracy = str(outcome.kind), outcome.results.get("accuracy")
        if state in _NOTEBOOK_ENDS and outcome.seconds and _is_notebook(run):
            state = "ok"
        is_number = isinstance(accuracy, int | float) and not isinstance(accuracy, bool)
        done = Done(
            state=state,
            accuracy=float(str(accuracy)) if is_number else None,
            seconds=outcome.seconds,
            finished=(run.directory / "outcome.json").stat().st_mtime,
        )
        before = best.get(name)
        better = max(before, done, key=_rank) if before else done
        best[name] = replace(better, tries=before.tries + 1 if before else 1)
    return best


def _is_notebook(run: Run) -> bool:
    """Return whether a run is a notebook, which ends when its user or its time limit ends it."""
    try:
        return run.plan.launch.launcher == forward.LAUNCHER
    except ConfigError:
        return False


def open_directory(path: Path) -> None:
    """Create the directory of results, which others can write to and not list.

    Raises:
        UsageError: no directory is named, or there is something at its path.
    """
    if path.exists() or path.is_symlink():
        if _is_opened(path):
            path.chmod(_MODE)  # a closing that was interrupted has taken the others' rights
            return
        raise UsageError(
            f"{path} exists already, and is not a directory of results",
            place="workshop.toml, key results",
            next_step="name a directory that does not exist yet",
        )
    with temporary_beside(path) as scratch:
        made = scratch / "made"
        made.mkdir(mode=0o700)
        (made / _MARKER).touch(mode=0o600)
        made.chmod(_MODE)
        made.rename(path)


def read_all(path: Path, workshop: str) -> tuple[list[Results], list[Unread]]:
    """Return the participants' results, sorted by name, and the entries that do not count.

    Raises:
        ConfigError: there is no directory of results.
    """
    results: list[Results] = []
    unread: list[Unread] = []
    user = cache(_user)

    def is_foreign(entry: str) -> bool:
        try:
            return entry != f"{user((path / entry).lstat().st_uid)}.json"
        except OSError:  # it was removed meanwhile
            return True

    # The files of one user can have any names, and must not keep those of others from being read.
    for entry in sorted(_entries(path), key=is_foreign):
        if len(unread) >= _MOST_UNREAD:
            text = f"more than {_MOST_UNREAD} files that do not count; the rest is not listed"
            unread.append(Unread("...", text))
            break
        try:
            results.append(_read(path, entry, workshop))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            unread.append(Unread(entry, reason or "it cannot be read"))
    return sorted(results, key=lambda each: each.name), unread


def _entries(path: Path) -> list[str]:
    try:
        return sorted(each.name for each in path.iterdir() if each.name[0] != ".")
    except FileNotFoundError:
        raise ConfigError(
            "the workshop has no results yet: its directory of results does not exist",
            place=str(path),
            next_step="toolkit workshop open",
        ) from None


def _read(directory: Path, entry: str, workshop: str) -> Results:
    """Read a participant's file. Raise ValueError if it does not count."""
    with open_regular(directory / entry, below=directory) as stream:
        owner = _user(os.fstat(stream.fileno()).st_uid)
        data = stream.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it is larger than {_MOST >> 10} KiB")
    try:
        results = from_json(data, Results)
    except BadDataError as error:
        raise ValueError(f"it is not a file of results: {error}") from None
    if results.name != owner or entry != f"{owner}.json":
        raise ValueError(f"it names {results.name}, and belongs to {owner}")
    if results.workshop != workshop:
        raise ValueError(f"it is about the workshop {results.workshop}")
    return results


def remove_one(path: Path, name: str) -> None:
    """Remove the results of a participant, who can then leave them again.

    Raises:
        ScriptMissingError: this participant has left no results.
    """
    known = [entry.removesuffix(".json") for entry in _entries(path) if entry.endswith(".json")]
    if name not in known:
        raise ScriptMissingError(
            f"{name} has left no results",
            place="NAME",
            choices=known,
            value=name,
            next_step="toolkit workshop status shows who has",
        )
    entry = path / f"{name}.json"
    try:
        entry.unlink()
    except IsADirectoryError:  # another user made it, and only they can empty it
        entry.rename(entry.with_name(f".{entry.name}.{time.time_ns()}"))


def close_directory(path: Path) -> int:
    """Remove the directory of results with all files; return the number of participants' files.

    Raises:
        UsageError: it is not a directory that `toolkit workshop open` made for this user.
        ForbiddenError: users put directories there, which only they can empty.
    """
    if path.is_symlink() or not _is_opened(path):
        raise UsageError(
            f"{path} is not a directory of results that you opened",
            place="workshop.toml, key results",
            next_step="examine it, and remove it by hand",
        )
    path.chmod(0o700)  # from now on no participant can add to it
    count = len(_entries(path))
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _MARKER:
            entry.unlink()
    left = [entry for entry in path.iterdir() if entry.name != _MARKER]
    if left:  # the marker stays, so that the directory can be closed again
        raise ForbiddenError(
            f"{counted(len(left), 'directory')} of other users cannot be removed; the rest is",
            place=", ".join(f"{entry} of {_user(entry.lstat().st_uid)}" for entry in left[:3]),
            next_step="ask their owner or an administrator to remove them, then close again",
        )
    shutil.rmtree(path)
    return count


def _is_opened(path: Path) -> bool:
    """Return whether `toolkit workshop open` made a directory for this user."""
    try:
        marker = (path / _MARKER).lstat()
    except OSError:
        return False
    return stat.S_ISREG(marker.st_mode) and marker.st_uid == path.stat().st_uid == os.geteuid()


def remove_unpacked(path: Path, name: str) -> None:
    """Remove the unpacked workshop of a name, also the rest of one whose files were purged.

    Raises:
        UsageError: it is another one, or holds files that were not in the packed workshop.
    """
    from toolkit.workshops.archive import parse_contents
    from toolkit.workshops.join import read_list

    contents = parse_contents(read_list(path), path / CONTENTS)
    if contents.name != name:
        raise UsageError(
            f"{path} is the workshop {contents.name}, not {name}",
            place="--unpacked",
            next_step=f"name the directory to which {name} was unpacked",
        )
    listed = {path / name for name in (*contents.files, CONTENTS, SIGNATURE)}
    others = sorted(
        file
        for file in path.rglob("*")
        if file.is_symlink() or not (file.is_dir() or file in listed)
    )
    if others or path.is_symlink():
        raise UsageError(
            f"{path} has a file that was not unpacked there: {others[0] if others else path}",
            place=str(path),
            next_step="move it elsewhere, then close again",
        )
    for file in listed - {path / CONTENTS}:
        file.unlink(missing_ok=True)
    shutil.rmtree(path)  # the list is the last, so that this can be repeated
