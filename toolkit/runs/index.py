"""Index the directories that hold runs, for `toolkit ps --all-directories` and job ids.

There is one small file for each directory, and each is replaced as a whole. So two processes, or
two hosts that share a home directory over NFS, need no lock and never write into each other's
text. The index is a convenience: no run fails because of it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ConfigError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import Model, to_json

_MOST_SIBLINGS = 2000  # directories that are examined for one that was renamed
_REFRESH = 86400.0  # seconds after which the time of an entry is renewed


class Entry(Model, frozen=True, kw_only=True):
    """A directory of runs as it was last observed.

    Attributes:
        directory: absolute path.
        inode: it stays the same when the directory, or one above it, is renamed.
        host: that observed it; another host may not have its file system.
    """

    directory: str
    inode: int
    host: str


class Known(NamedTuple):
    """The directories of runs in the index.

    Attributes:
        directories: that are there, each once.
        missing: entries of directories that this host does not see now.
    """

    directories: tuple[Path, ...]
    missing: tuple[Entry, ...]


def place() -> Path:
    """Return the directory of the index; it may not exist.

    Raises:
        RuntimeError: the user has no home directory.
    """
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "toolkit" / "runs"


def remember(runs: Path) -> None:
    """Add a directory of runs to the index. Never fails: a full disk must not stop a run."""
    with suppress(OSError, RuntimeError, ValueError):
        directory = runs.absolute()
        entry = Entry(
            directory=str(directory), inode=directory.stat().st_ino, host=socket.gethostname()
        )
        file = _file(str(directory))
        if _read(file) != entry:
            write_atomically(file, to_json(entry), mode=0o600)
        elif time.time() - file.stat().st_mtime > _REFRESH:
            os.utime(file)


def known() -> Known:
    """Return every directory of runs that is known; forget those that were removed."""
    directories: dict[tuple[int, int], Path] = {}
    missing: list[Entry] = []
    for file, entry in _entries():
        directory = _present(entry)
        if directory is None and not _was_removed(entry):
            missing.append(entry)
            continue
        if directory is None or str(directory) != entry.directory:
            with suppress(OSError):
                file.unlink()
        if directory is not None:
            remember(directory)
            status = directory.stat()
            directories.setdefault((status.st_dev, status.st_ino), directory)
    return Known(tuple(sorted(directories.values())), tuple(missing))


def directories_except(runs: Path) -> tuple[Path, ...]:
    """Return the known directories of runs but this one."""
    return tuple(
        other for other in known().directories if not (runs.is_dir() and other.samefile(runs))
    )


def _file(directory: str) -> Path:
    return place() / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()[:24]}.json"


def _read(file: Path) -> Entry | None:
    try:
        return read_json(file, Entry)
    except ConfigError:  # not there, or written by another version
        return None


def _entries() -> Iterator[tuple[Path, Entry]]:
    with suppress(OSError, RuntimeError):
        for file in sorted(place().glob("*.json")):
            entry = _read(file)
            if entry is not None:
                yield file, entry


def _present(entry: Entry) -> Path | None:
    """Return where the directory is now: at its path, or under a name that was changed since."""
    directory = Path(entry.directory)
    with suppress(OSError):
        if directory.is_dir():
            return directory
    return _renamed(entry)


def _renamed(entry: Entry) -> Path | None:
    """Find a directory by its inode: one name in its path has changed.

    Only a directory of the user's own is searched: below one of the system's, such as /home, the
    search could have the automounter mount every other user's home.
    """
    above = _nearest_own(entry)
    if above is None:
        return None
    rest = Path(entry.directory).relative_to(above).parts[1:]
    with suppress(OSError):
        for sibling in islice(above.iterdir(), _MOST_SIBLINGS):
            candidate = sibling.joinpath(*rest)
            with suppress(OSError):
                if candidate.is_dir() and candidate.stat().st_ino == entry.inode:
                    return candidate
    return None


def _nearest_own(entry: Entry) -> Path | None:
    """Return the nearest directory above that still exists, if it is the user's own."""
    with suppress(OSError):
        above = next(parent for parent in Path(entry.directory).parents if parent.is_dir())
        if above.stat().st_uid == os.geteuid() and above != Path(above.anchor):
            return above
    return None


def _was_removed(entry: Entry) -> bool:
    """Return whether a missing directory was removed, rather than its file system not mounted."""
    return entry.host == socket.gethostname() and _nearest_own(entry) is not None
