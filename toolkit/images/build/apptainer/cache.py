"""What builds keep for the next: files under keys, in ``.cache`` beside the images.

- ``bases/KEY.sif``: what images begin as, packed once.
- ``layers/KEY.sqfs``: what a step changed, by the key of the step and all before it.
- ``tables/KEY.tail``: the tables of a base with layers on it, which any change of these makes useless.
- ``wheels/KEY/``: what a build stage compiled, by what it was compiled against; ``wheels/KEY.json`` says that it is whole.

A file counts only with a note beside it, written last, that says how long it is and what its bytes
hash to. One that is not as its note left it, by its length or its time, is hashed when it is looked
for; ``is_undamaged`` hashes any, before it gets into an image. So what a killed build leaves is
never taken for whole, and two builds that keep the same thing at the same time keep one of the two.
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
from toolkit.files import hash_file, sync, write_atomically
from toolkit.images.build.remove import remove
from toolkit.images.store.sharing import lock, make_directory, open_lock
from toolkit.model.base import BadDataError, Model, from_json, to_json

BASES, LAYERS, TABLES, WHEELS = "bases", "layers", "tables", "wheels"
KINDS = (BASES, LAYERS, TABLES, WHEELS)
_ENDINGS = {BASES: ".sif", LAYERS: ".sqfs", TABLES: ".tail", WHEELS: ""}


class Note(Model, frozen=True, kw_only=True):
    """What is known of a kept file, or of a directory of wheels.

    Attributes:
        size: in bytes.
        time: of its last change, in nanoseconds.
        digest: SHA-256 of its bytes; of a directory, of its names and their bytes.
        about: for people: the step that it is of.
        facts: whatever else its kind has to know.
    """

    size: int
    time: int
    digest: str
    about: str = ""
    facts: dict[str, str] = {}


class CacheEntry(Model, frozen=True, kw_only=True):
    """A whole entry.

    Attributes:
        used: when it was last used, in seconds since 1970.
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
        return self.directory / kind / f"{key}{_ENDINGS[kind]}"

    def find(self, kind: str, key: str) -> CacheEntry | None:
        """The entry of a key, if it is there and whole; one that is not is removed."""
        if not self._note(kind, key).exists():
            return None
        with self._locked(
            kind
        ):  # between a file and its note, a build that keeps the same may be at work
            return self._find(kind, key)

    def _find(self, kind: str, key: str) -> CacheEntry | None:
        path, note_path = self.path(kind, key), self._note(kind, key)
        try:
            note = from_json(note_path.read_text(encoding="utf-8"), Note)
        except (OSError, UnicodeDecodeError, BadDataError):
            return None
        if not _is_as_noted(path, note):
            note_path.unlink(missing_ok=True)
            _discard(path)
            return None
        return CacheEntry(
            kind=kind, key=key, path=str(path), note=note, used=note_path.stat().st_mtime
        )

    def use(self, kind: str, key: str) -> CacheEntry | None:
        """``find``, and remember that it was of use."""
        found = self.find(kind, key)
        if found:
            self.touch(found)
        return found

    def touch(self, kept: CacheEntry) -> None:
        """Remember that an entry was of use."""
        # It is being kept anew, or is another user's.
        with suppress(FileNotFoundError, PermissionError):
            os.utime(self._note(kept.kind, kept.key))

    def weighed(self, path: Path) -> tuple[int, str]:
        """Return the size and the SHA-256 of a file, or of all files of a directory with their names."""
        return _weighed(path)

    def is_undamaged(self, kept: CacheEntry) -> bool:
        """Return whether an entry has the bytes that were kept: by hashing all of them."""
        try:
            return _weighed(Path(kept.path)) == (kept.note.size, kept.note.digest)
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
        anew: bool = False,
        weighed: tuple[int, str] | None = None,
    ) -> CacheEntry:
        """Make a file or directory, which lies on the same file system, the entry of a key; the entry that there is then.

        Args:
            anew: also where another build has kept the same meanwhile; else that stays, since somebody may be reading it.
            weighed: its size and digest, where they are known.
        """
        target = self.path(kind, key)
        make_directory(target.parent)
        size, digest = weighed or _weighed(made)
        _sync_all(made)
        with self._locked(kind):
            if not anew and (there := self._find(kind, key)):
                return there
            self._note(kind, key).unlink(missing_ok=True)
            if target.is_dir():
                shutil.rmtree(target)
            made.replace(target)
            note = Note(
                size=size,
                time=target.stat().st_mtime_ns,
                digest=digest,
                about=about,
                facts=facts or {},
            )
            write_atomically(self._note(kind, key), to_json(note))
            return CacheEntry(
                kind=kind,
                key=key,
                path=str(target),
                note=note,
                used=self._note(kind, key).stat().st_mtime,
            )

    def entries(self) -> tuple[CacheEntry, ...]:
        """Everything that is kept and whole, the one used last first."""
        keys = (
            (kind, path.name.removesuffix(".json"))
            for kind in KINDS
            for path in (self.directory / kind).glob("*.json")
        )
        found = (self.find(kind, key) for kind, key in keys)
        return tuple(sorted((one for one in found if one), key=lambda one: -one.used))

    def drop(self, one: CacheEntry) -> None:
        """Forget an entry."""
        self._note(one.kind, one.key).unlink(missing_ok=True)
        _discard(Path(one.path))

    def sweep(self) -> None:
        """Remove what is no whole entry: leftovers of builds that were killed. Only within ``alone``."""
        for kind in KINDS:
            known = {
                path.name.removesuffix(".json") for path in (self.directory / kind).glob("*.json")
            }
            for path in (self.directory / kind).glob("*"):
                if (
                    path.name.removesuffix(_ENDINGS[kind] or ".json").removesuffix(".json")
                    not in known
                    and path.name != ".lock"
                ):
                    _discard(path)

    @contextmanager
    def used(self) -> Iterator[None]:
        """For a build: as long as this lasts, nobody clears the caches away below it."""
        with self._flock(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For who removes entries: no build is using any.

        Raises:
            BusyError: one is.
        """
        with self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    def _note(self, kind: str, key: str) -> Path:
        return self.directory / kind / f"{key}.json"

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
                next_step="again when it is done",
            ) from None
        finally:
            os.close(handle)

    @contextmanager
    def _locked(self, kind: str) -> Iterator[None]:
        path = self.directory / kind / ".lock"
        handle = open_lock(path)
        try:
            lock(handle, fcntl.LOCK_EX, path)
            yield
        finally:
            os.close(handle)


def _is_as_noted(path: Path, note: Note) -> bool:
    try:
        state = path.stat()
        if path.is_file() and state.st_size != note.size:
            return False
        if path.is_file() and state.st_mtime_ns == note.time:
            return True
        return _weighed(path) == (note.size, note.digest)
    except OSError:
        return False


def _weighed(path: Path) -> tuple[int, str]:
    """Size and hash of a file, or of all files of a directory with their names."""
    digest, size = hashlib.sha256(), 0
    for file in (
        [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())
    ):
        if file != path:
            digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        hash_file(file, digest)
        size += file.stat().st_size
    return size, digest.hexdigest()


def _sync_all(path: Path) -> None:
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        sync(one)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove(path)
    else:
        path.unlink(missing_ok=True)
