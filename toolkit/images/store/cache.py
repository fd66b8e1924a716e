"""The caches of builds: files under keys, in ``.cache`` beside the images.

- ``bases/KEY.sif``: bases of images, packed once.
- ``layers/KEY.sqfs``: what a step changed, by the key of the step and all before it.
- ``tables/KEY.tail``: the tables of a base with layers on it; any change of these makes them
  useless.
- ``wheels/KEY/``: what a build stage compiled, by what it was compiled against;
  ``wheels/KEY.json`` marks it as complete.

A file counts only with a note beside it, written last, with its length and its hash. If its length
or its time differs from the note, it is hashed when it is searched; ``is_undamaged`` hashes any
file before it gets into an image. So what a killed build leaves is never used, and two builds that
keep the same entry at the same time keep one of the two.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit.errors import BusyError
from toolkit.files import hash_file, read_text, sync, write_atomically
from toolkit.images.host.remove import remove
from toolkit.images.host.sharing import lock, make_directory, open_lock
from toolkit.model.base import BadDataError, Model, from_json, to_json

BASES, LAYERS, TABLES, WHEELS = "bases", "layers", "tables", "wheels"
KINDS = (BASES, LAYERS, TABLES, WHEELS)
_ENDINGS = {BASES: ".sif", LAYERS: ".sqfs", TABLES: ".tail", WHEELS: ""}


class Note(Model, frozen=True, kw_only=True):
    """The note beside a file of the cache, or beside a directory of wheels.

    Attributes:
        size: The size in bytes.
        time: The time of the last change, in nanoseconds.
        digest: The SHA-256 of the bytes; of a directory, of its names and their bytes.
        about: The step that made it, for people.
        facts: Further facts of the entry's kind.
    """

    size: int
    time: int
    digest: str
    about: str = ""
    facts: dict[str, str] = {}


class CacheEntry(Model, frozen=True, kw_only=True):
    """A complete cache entry.

    Attributes:
        used: When it was last used, in seconds since 1970.
    """

    kind: str
    key: str
    path: str
    note: Note
    used: float


class Cache:
    """The caches beside the images of one directory."""

    def __init__(self, images: Path) -> None:
        self.directory = images / ".cache"

    def path(self, kind: str, key: str) -> Path:
        """Return the path of an entry's file or directory."""
        return self.directory / kind / f"{key}{_ENDINGS[kind]}"

    def find(self, kind: str, key: str) -> CacheEntry | None:
        """Return the entry of a key if it is complete; remove it if it is not."""
        if not self._note(kind, key).exists():
            return None
        with self._locked(kind):  # another build may be between a file and its note
            return self._find(kind, key)

    def _find(self, kind: str, key: str) -> CacheEntry | None:
        path, note_path = self.path(kind, key), self._note(kind, key)
        try:
            note = from_json(read_text(note_path), Note)
        except (OSError, UnicodeDecodeError, BadDataError):
            return None
        if not _agrees(path, note):
            note_path.unlink(missing_ok=True)
            _discard(path)
            return None
        return self._entry(kind, key, note)

    def _entry(self, kind: str, key: str, note: Note) -> CacheEntry:
        used = self._note(kind, key).stat().st_mtime
        return CacheEntry(kind=kind, key=key, path=str(self.path(kind, key)), note=note, used=used)

    def use(self, kind: str, key: str) -> CacheEntry | None:
        """Return the entry as ``find`` does, and record its use."""
        entry = self.find(kind, key)
        if entry:
            self.touch(entry)
        return entry

    def touch(self, entry: CacheEntry) -> None:
        """Record the use of an entry."""
        # It is being replaced, or belongs to another user.
        with suppress(FileNotFoundError, PermissionError):
            os.utime(self._note(entry.kind, entry.key))

    def is_undamaged(self, entry: CacheEntry) -> bool:
        """Return whether an entry has the bytes that were kept, by hashing all of them."""
        try:
            return measure(Path(entry.path)) == (entry.note.size, entry.note.digest)
        except OSError:
            return False

    def keep(
        self,
        kind: str,
        key: str,
        made: Path,
        *,
        about: str = "",
        facts: dict[str, str] | None = None,
        replace: bool = False,
        measured: tuple[int, str] | None = None,
    ) -> CacheEntry:
        """Move a file or directory of the same file system into the cache; return its entry.

        Args:
            kind: The kind of entry.
            key: Its key.
            made: The file or directory.
            about: The step that made it, for people.
            facts: Further facts of the kind.
            replace: Also replace the entry of another build; else that stays, because another
                process may be reading it.
            measured: The size and digest, if they are known.
        """
        target = self.path(kind, key)
        make_directory(target.parent)
        size, digest = measured or measure(made)
        for path in [made, *made.rglob("*")] if made.is_dir() else [made]:
            sync(path)
        with self._locked(kind):
            if not replace and (existing := self._find(kind, key)):
                return existing
            self._note(kind, key).unlink(missing_ok=True)
            if target.is_dir():
                shutil.rmtree(target)
            made.replace(target)
            time = target.stat().st_mtime_ns
            note = Note(size=size, time=time, digest=digest, about=about, facts=facts or {})
            write_atomically(self._note(kind, key), to_json(note))
            return self._entry(kind, key, note)

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return all complete entries, the one used last first."""
        entries = (
            self.find(kind, path.name.removesuffix(".json"))
            for kind in KINDS
            for path in (self.directory / kind).glob("*.json")
        )
        return tuple(sorted(filter(None, entries), key=lambda entry: -entry.used))

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry."""
        self._note(entry.kind, entry.key).unlink(missing_ok=True)
        _discard(Path(entry.path))

    def sweep(self) -> None:
        """Remove what killed builds left; only within ``alone``."""
        for kind in KINDS:
            directory = self.directory / kind
            keys = {path.name.removesuffix(".json") for path in directory.glob("*.json")}
            for path in directory.glob("*"):
                name = path.name.removesuffix(_ENDINGS[kind] or ".json").removesuffix(".json")
                if name not in keys and path.name != ".lock":
                    _discard(path)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep other processes from removing entries during a build."""
        with self._flock(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep builds from using entries that are about to be removed.

        Raises:
            BusyError: A build is using the caches.
        """
        with self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    def _note(self, kind: str, key: str) -> Path:
        return self.directory / kind / f"{key}.json"

    @contextmanager
    def _flock(self, how: int) -> Iterator[None]:
        make_directory(self.directory)
        try:
            with _hold(self.directory / ".use.lock", how):
                yield
        except BlockingIOError:
            raise BusyError(
                "a build is using the caches",
                place=str(self.directory),
                next_step="try again when it has ended",
            ) from None

    @contextmanager
    def _locked(self, kind: str) -> Iterator[None]:
        with _hold(self.directory / kind / ".lock", fcntl.LOCK_EX):
            yield


@contextmanager
def _hold(path: Path, how: int) -> Iterator[None]:
    handle = open_lock(path)
    try:
        lock(handle, how, path)
        yield
    finally:
        os.close(handle)


def _agrees(path: Path, note: Note) -> bool:
    try:
        status = path.stat()
        if path.is_file() and status.st_size != note.size:
            return False
        if path.is_file() and status.st_mtime_ns == note.time:
            return True
        return measure(path) == (note.size, note.digest)
    except OSError:
        return False


def measure(path: Path) -> tuple[int, str]:
    """Return the size and SHA-256 of a file, or of all files of a directory with their names."""
    if path.is_file():
        return path.stat().st_size, hash_file(path)
    digest, size = hashlib.sha256(), 0
    for file in sorted(inner for inner in path.rglob("*") if inner.is_file()):
        length = file.stat().st_size
        digest.update(f"{file.relative_to(path)}\0{length}\0".encode())
        hash_file(file, digest)
        size += length
    return size, digest.hexdigest()


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove(path)
    else:
        path.unlink(missing_ok=True)
