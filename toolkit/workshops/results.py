"""The directory of results: what participants' runs leave there, and what the instructor reads.

Each participant owns one file in it, which holds states and accuracies and nothing else. Others
cannot list the directory, and the sticky bit keeps them from replacing a file. The instructor reads
files that any user could have written, so each is read without following links, up to a small
size, and counts only if its owner is the user whom it names.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import ConfigError, ForbiddenError, ScriptMissingError, UsageError
from toolkit.files import open_regular, read_json, write_atomically, written_whole
from toolkit.model.base import BadDataError, from_json, to_json
from toolkit.runs import ssh
from toolkit.runs.run import Run, all_runs
from toolkit.units import counted
from toolkit.workshops.join import contents_list
from toolkit.workshops.model import CONTENTS, JOINED, SIGNATURE, Done, Joined, Results

_MOST = 64 << 10
_NOTEBOOK_ENDS = ("cancelled", "timeout")  # not one that Slurm or the server ended
_MODE = 0o3733  # sticky and with the instructor's group; participants cannot list it
_MARKER = ".toolkit-workshop"


def leave(directory: Path) -> Path | None:
    """Write the results of the runs in a joined directory, if its owner shares them.

    Raises:
        UntrustedError: another user could have joined here.
        ForbiddenError: the directory of results is closed, or cannot be written.
    """
    joined = read_json(directory / JOINED, Joined, searched=True)  # it holds the consent
    if not joined.results:
        return None
    name = _user(os.geteuid())
    target = Path(joined.results) / f"{name}.json"
    done = collect(joined.exercises, all_runs(directory / "runs"))
    try:
        with contextlib.suppress(OSError, ValueError):
            # Of another directory perhaps; runs of one directory are counted once.
            for exercise, before in _read(target, joined.name).exercises.items():
                both = (done.get(exercise, before), before)
                done[exercise] = max(both, key=lambda each: (*_rank(each), each.tries))
        target.parent.stat()  # a directory of results that was closed is not made again
        # The group is the instructor's, by the directory.
        text = to_json(Results(name=name, workshop=joined.name, exercises=done))
        write_atomically(target, text, mode=0o640)
    except OSError as error:
        raise ForbiddenError(
            f"the results of the workshop cannot be left: {error.strerror}",
            place=str(target),
            next_step="ask the instructor whether it is open; your runs are not affected",
        ) from None
    return target


def _rank(done: Done) -> tuple[bool, float]:
    return done.state == "ok", done.accuracy or 0.0


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
        if state in _NOTEBOOK_ENDS and outcome.seconds and ssh.is_notebook(run):
            state = "ok"
        is_number = isinstance(accuracy, int | float) and not isinstance(accuracy, bool)
        done = Done(
            state=state,
            accuracy=float(str(accuracy)) if is_number else None,
            seconds=outcome.seconds,
        )
        before = best.get(name)
        better = max(before, done, key=_rank) if before else done
        best[name] = replace(better, tries=before.tries + 1 if before else 1)
    return best


def open_directory(path: Path) -> None:
    """Create the directory of results, which others can write to and not list.

    Raises:
        UsageError: there is something else at its path.
    """
    if os.path.lexists(path):
        _require_opened(path)
        path.chmod(_MODE)  # a closing that was interrupted has taken the others' rights
        return
    with written_whole(path) as made:
        made.mkdir(mode=0o700)
        (made / _MARKER).touch(mode=0o600)
        made.chmod(_MODE)


def _require_opened(path: Path) -> None:
    """Raise UsageError unless `toolkit workshop open` made a directory for this user."""
    with contextlib.suppress(OSError):
        marker = (path / _MARKER).lstat()
        is_own = marker.st_uid == path.lstat().st_uid == os.geteuid()
        if is_own and stat.S_ISREG(marker.st_mode) and not path.is_symlink():
            return
    raise UsageError(
        f"{path} is not a directory of results that you opened",
        place="workshop.toml, key results",
        next_step="name a directory that does not exist yet",
    )


def read_all(path: Path, workshop: str) -> tuple[list[Results], list[tuple[str, str]]]:
    """Return the participants' results by name, and the entries that do not count with the reason.

    Raises:
        ConfigError: there is no directory of results.
    """
    results: list[Results] = []
    unread: list[tuple[str, str]] = []
    foreign = 0  # one user can leave many, with any names
    for entry in _entries(path):
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            if entry != f"{_user((path / entry).lstat().st_uid)}.json":
                foreign += 1
                continue
        try:
            results.append(_read(path / entry, workshop))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            unread.append((entry, reason or "it cannot be read"))
    if foreign:
        unread.append(("...", f"{counted(foreign, 'file')} without the name of their owner"))
    return results, unread


def _entries(path: Path) -> list[str]:
    try:
        return sorted(each.name for each in path.iterdir() if each.name[0] != ".")
    except FileNotFoundError:
        raise ConfigError(
            "the workshop has no results yet: its directory of results does not exist",
            place=str(path),
            next_step="toolkit workshop open",
        ) from None


def _read(file: Path, workshop: str) -> Results:
    """Read a participant's file. Raise ValueError if it does not count."""
    with open_regular(file, below=file.parent) as stream:
        owner = _user(os.fstat(stream.fileno()).st_uid)
        data = stream.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it is larger than {_MOST >> 10} KiB")
    try:
        results = from_json(data, Results)
    except BadDataError as error:
        raise ValueError(f"it is not a file of results: {error}") from None
    if results.name != owner or file.name != f"{owner}.json":
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
    _require_opened(path)
    path.chmod(0o700)  # from now on no participant can add to it
    entries = [entry for entry in path.iterdir() if entry.name != _MARKER]
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()
    left = [entry for entry in entries if os.path.lexists(entry)]
    if left:  # the marker stays, so that the directory can be closed again
        raise ForbiddenError(
            f"{counted(len(left), 'directory')} of other users cannot be removed; the rest is",
            place=", ".join(f"{entry} of {_user(entry.lstat().st_uid)}" for entry in left[:3]),
            next_step="ask their owner or an administrator to remove them, then close again",
        )
    shutil.rmtree(path)
    return len(entries)


def remove_unpacked(path: Path, name: str) -> None:
    """Remove the unpacked workshop of a name, also the rest of one whose files were purged.

    Raises:
        UsageError: it is another one, or holds files that were not in the packed workshop.
    """
    contents = contents_list(path)
    if contents.name != name:
        raise UsageError(
            f"{path} is the workshop {contents.name}, not {name}",
            place="--unpacked",
            next_step=f"name the directory to which {name} was unpacked",
        )
    listed = {path / name for name in (*contents.files, CONTENTS, SIGNATURE)}
    others = [
        file
        for file in (path, *sorted(path.rglob("*")))
        if file.is_symlink() or not (file.is_dir() or file in listed)
    ]
    if others:
        raise UsageError(
            f"{path} has a file that was not unpacked there: {others[0]}",
            place=str(path),
            next_step="move it elsewhere, then close again",
        )
    for file in listed - {path / CONTENTS}:
        file.unlink(missing_ok=True)
    shutil.rmtree(path)  # the list is the last, so that this can be repeated
