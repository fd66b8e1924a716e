"""The caches of builds: files under keys, in ``.cache`` beside the images.

- ``bases``: bases of images, packed once.
- ``layers``: what a step changed, by the key of the step and all before it.
- ``wheels``: what a build stage compiled, by what it was compiled against.

An entry is a file or a directory, whose name has its digest, and a note ``KEY.json`` that names it.
The note is written last, at once. So what a killed build leaves is never used, and of two builds
that keep the same entry at the same time both leave a whole one. The caches are trusted as the
images beside them are.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit.errors import BusyError
from toolkit.files import hash_file, read_text, sync, write_atomically
from toolkit.images.host.mutex import lock, make_directory, open_lock
from toolkit.images.host.workspace import remove
from toolkit.model.base import Model, Stored, from_json, to_json

BASES, LAYERS, WHEELS = "bases", "layers", "wheels"
KINDS = (BASES, LAYERS, WHEELS)
_ENDINGS = {BASES: ".sif", LAYERS: ".sqfs", WHEELS: ""}


class Note(Stored, frozen=True, kw_only=True):
    """The note on an entry of the cache.

    Attributes:
        size: The size in bytes.
        digest: The SHA-256 of the bytes; of a directory, of its names and their bytes.
        about: The step that made it, for people.
        facts: Further facts of the entry's kind: the labels of a base.
        variables: The variables of a base; empty if they were not asked for.
    """

    size: int
    digest: str
    about: str = ""
    facts: dict[str, str] = {}
    variables: dict[str, str] = {}


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

    def find(self, kind: str, key: str) -> CacheEntry | None:
        """Return the entry of a key if it is complete."""
        note_path = self._note(kind, key)
        try:
            note = from_json(read_text(note_path), Note)
            path, used = self._path(kind, key, note.digest), note_path.stat().st_mtime
            is_whole = path.is_dir() or path.stat().st_size == note.size
        except (OSError, ValueError):
            return None
        entry = CacheEntry(kind=kind, key=key, path=str(path), note=note, used=used)
        return entry if is_whole else None

    def use(self, kind: str, key: str) -> CacheEntry | None:
        """Return the entry as ``find`` does, and record its use."""
        entry = self.find(kind, key)
        if entry:
            # It is being replaced, or belongs to another user.
            with suppress(FileNotFoundError, PermissionError):
                os.utime(self._note(kind, key))
        return entry

    def keep(
        self,
        kind: str,
        key: str,
        made: Path,
        *,
        about: str = "",
        facts: dict[str, str] | None = None,
        variables: dict[str, str] | None = None,
        replace: bool = False,
    ) -> CacheEntry:
        """Move a file or directory of the same file system into the cache; return its entry.

        Args:
            kind: The kind of entry.
            key: Its key.
            made: The file or directory.
            about: The step that made it, for people.
            facts, variables: As of ``Note``.
            replace: Also replace the entry of another build; else that stays, because another
                process may be reading it.
        """
        if not replace and (existing := self.find(kind, key)):
            return existing
        size, digest = _measure(made)
        for path in [made, *made.rglob("*")] if made.is_dir() else [made]:
            sync(path)
        target = self._path(kind, key, digest)
        make_directory(target.parent)
        try:
            made.replace(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another build made the same
                raise
        note = Note(
            size=size, digest=digest, about=about, facts=facts or {}, variables=variables or {}
        )
        write_atomically(self._note(kind, key), to_json(note))
        entry = self.find(kind, key)
        assert entry
        return entry

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return all complete entries, the one used last first."""
        notes = [
            (kind, note) for kind in KINDS for note in self.directory.glob(f"{kind}/[!.]*.json")
        ]
        entries = (self.find(kind, note.name.removesuffix(".json")) for kind, note in notes)
        return tuple(sorted(filter(None, entries), key=lambda entry: -entry.used))

    def clear(self) -> None:
        """Remove all entries, and what killed builds left.

        Raises:
            BusyError: A build is using the caches.
        """
        with self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            # Notes first: what has none is not an entry.
            files = sorted(self.directory.glob("*/*"), key=lambda path: path.suffix != ".json")
            for path in files:
                if path.is_dir() and not path.is_symlink():
                    remove(path)
                else:
                    path.unlink(missing_ok=True)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep other processes from removing entries during a build."""
        with self._flock(fcntl.LOCK_SH):
            yield

    def _note(self, kind: str, key: str) -> Path:
        return self.directory / kind / f"{key}.json"

    def _path(self, kind: str, key: str, digest: str) -> Path:
        return self.directory / kind / f"{key[:32]}-{digest}{_ENDINGS[kind]}"

    @contextmanager
    def _flock(self, how: int) -> Iterator[None]:
        make_directory(self.directory)
        path = self.directory / ".use.lock"
        handle = open_lock(path)
        try:
            lock(handle, how, path)
            yield
        except BlockingIOError:
            raise BusyError(
                "a build is using the caches",
                place=str(self.directory),
                next_step="try again when it has ended",
            ) from None
        finally:
            os.close(handle)


def _measure(path: Path) -> tuple[int, str]:
    if path.is_file():
        return path.stat().st_size, hash_file(path)
    digest, size = hashlib.sha256(), 0
    for file in sorted(inner for inner in path.rglob("*") if inner.is_file()):
        length = file.stat().st_size
        digest.update(f"{file.relative_to(path)}\0{length}\0".encode())
        hash_file(file, digest)
        size += length
    return size, digest.hexdigest()
