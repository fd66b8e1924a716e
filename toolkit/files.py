"""Read files that users wrote, and write files so that no reader ever sees an incomplete one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.config import is_shipped
from toolkit.errors import EXHAUSTED, ConfigError
from toolkit.model.base import AnyModel, BadDataError, from_json, from_toml

_MOST_BYTES = 64 << 20  # of a file that is read whole; ours have at most some megabytes
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: Path, *, below: Path | None = None) -> BinaryIO:
    """Open a regular file for reading, and never wait, as opening another user's pipe would.

    Args:
        path: the file.
        below: the directory that the file, or the folder that it is in, is an entry of, and no
            symbolic link; None: links are followed.

    Raises:
        OSError: it cannot be opened, or is something else than a regular file.
    """
    handle = _open_below(path, below) if below else os.open(path, _READ)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def _open_below(path: Path, below: Path) -> int:
    is_link_allowed = path.parent == below
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | (0 if is_link_allowed else os.O_NOFOLLOW)
    try:
        parent = os.open(path.parent, flags)
        try:
            return os.open(path.name, _READ | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise OSError(error.errno, reason, str(path)) from None


def read_text(
    path: Path, most: int = _MOST_BYTES, *, errors: str = "strict", below: Path | None = None
) -> str:
    """Return the text of a file of at most ``most`` bytes, with its line ends as they are.

    ``below`` is as of ``open_regular``.

    Raises:
        OSError: it cannot be read, or is larger.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path, most, below=below).decode("utf-8", errors)


def read_bytes(path: Path, most: int, *, below: Path | None = None) -> bytes:
    """Return a file of at most ``most`` bytes; errors as ``read_text``."""
    data = bytearray()
    with open_regular(path, below=below) as stream:
        while len(data) <= most and (chunk := stream.read(_CHUNK)):  # read(most) takes that memory
            data += chunk
    if len(data) > most:
        raise OSError(errno.EINVAL, f"it is larger than {most >> 20} MiB", str(path))
    return bytes(data)


def read_toml(
    path: Path,
    model: type[AnyModel],
    *,
    named: bool = False,
    parse: Callable[[str, type[AnyModel]], AnyModel] = from_toml,
) -> AnyModel:
    """Read a TOML file into a model.

    Args:
        path: the file.
        model: the model of its content.
        named: the user named the file, or its directory; else its owner must be trusted.
        parse: parses its text, which may hold TOML in comments.

    Raises:
        UntrustedError: it was not named, and another user could have written it.
        ConfigError: it is missing, unreadable, not TOML, or does not fit the model; with the key,
            its place and the nearest valid key.
    """
    return _read(path, model, parse, is_searched=not named)


def read_json(
    path: Path, model: type[AnyModel], *, searched: bool = False, below: Path | None = None
) -> AnyModel:
    """Read a JSON file that we wrote into a model; errors as ``read_toml``.

    Args:
        path: the file.
        model: the model of its content.
        searched: the file was found by searching, so that its owner must be trusted.
        below: as of ``open_regular``.
    """
    return _read(path, model, from_json, is_searched=searched, below=below)


def _read(
    path: Path,
    model: type[AnyModel],
    parse: Callable[[str, type[AnyModel]], AnyModel],
    *,
    is_searched: bool,
    below: Path | None = None,
) -> AnyModel:
    try:
        if is_searched and not is_shipped(path):
            from toolkit.trust import require_trusted  # what is shipped needs no examination

            require_trusted(path, must_exist=True)
        text = read_text(path, below=below)
    except (OSError, ValueError) as error:  # a ValueError: a path that no file can have
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise
        is_text = not isinstance(error, UnicodeDecodeError)
        reason = (getattr(error, "strerror", "") or str(error)) if is_text else "it is not UTF-8"
        raise ConfigError(
            f"{path} cannot be read: {reason}",
            place=str(path),
            next_step="check its path, its permissions (ls -l), and that it is text in UTF-8",
        ) from error
    try:
        return parse(text, model)
    except BadDataError as error:
        raise config_error(path, text, error) from None


def config_error(path: Path, text: str, error: BadDataError) -> ConfigError:
    """Return the error for ``path``, with the line of the key if one line alone begins with it."""
    name = error.key.rpartition(".")[2]
    begins = (row.partition("=")[0].strip(" \t[]\"'") for row in text.splitlines() if name)
    lines = [number for number, each in enumerate(begins, 1) if each.rpartition(".")[2] == name]
    line = error.line or (lines[0] if len(lines) == 1 else 0)
    place = f"{path}:{line}" if line else str(path)
    return ConfigError(
        str(error),
        place=f"{place}, key {error.key}" if error.key else place,
        choices=error.choices,
        value=error.value,
        next_step=f"correct {path.name}, and try again" if path.suffix == ".toml" else None,
    )


def hash_file(path: Path, digest: Any = None, *, extent: tuple[int, int] | None = None) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Args:
        path: The file.
        digest: A hash object that the file's bytes are added to; a new one by default.
        extent: Position and length of the bytes; the whole file by default.

    Raises:
        OSError: The file cannot be read.
    """
    import hashlib  # with OpenSSL; most commands hash nothing

    digest = digest or hashlib.sha256()
    start, left = extent or (0, path.stat().st_size)
    with open_regular(path) as stream:
        stream.seek(start)
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    return str(digest.hexdigest())


def sync(path: Path) -> None:
    """Write a file, or the names in a directory, to disk before anything else relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Create a directory from which a file or folder can be renamed to ``target``; remove it.

    What processes of this host have left for the same target when they were killed is removed, too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(target.parent, f".{target.name}.{os.uname().nodename}.") as scratch:
        yield scratch


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Yield a path beside ``target``; what was made there gets that name, if nothing failed."""
    with temporary_beside(target) as scratch:
        yield scratch / "made"
        (scratch / "made").replace(target)


@contextmanager
def temporary_directory(
    parent: Path, prefix: str, clear: Callable[[Path], object] = bool
) -> Iterator[Path]:
    """Create a locked directory of this name and a random end; remove it.

    Those of killed processes are removed first, as by ``remove_left``.
    """
    import tempfile  # with random and its hashes; most commands write nothing

    remove_left(parent, prefix, clear)
    lock = None
    while lock is None:
        scratch = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        lock = lock_new_directory(Path(scratch.name))
    try:
        yield Path(scratch.name)
    finally:
        scratch.cleanup()
        os.close(lock)


def lock_new_directory(path: Path) -> int | None:
    """Lock a directory that was just created; closing the returned descriptor unlocks it.

    None if it has gone: another process took it for one that a killed process had left.
    """
    import fcntl

    try:
        lock = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # no locks here: it stays if this process is killed
        fcntl.flock(lock, fcntl.LOCK_EX)
    if path.is_dir():
        return lock
    os.close(lock)
    return None


def remove_left(parent: Path, prefix: str, clear: Callable[[Path], object] = bool) -> list[Path]:
    """Remove this user's temporary directories whose lock has ended with its process.

    Args:
        parent: where they are.
        prefix: the beginning of their names.
        clear: removes first what belongs to one and is not in it.
    """
    import fcntl
    import shutil

    removed = []
    for place in sorted(path for path in parent.iterdir() if path.name.startswith(prefix)):
        with suppress(OSError):
            lock = os.open(place, _DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    clear(place)
                    shutil.rmtree(place, ignore_errors=True)
                    removed.append(place)
            finally:
                os.close(lock)
    return removed


def write_atomically(
    path: Path,
    text: str,
    *,
    mode: int = 0o644,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write a file so that a reader, also after a power cut, sees the old one or the new one.

    Args:
        path: the file.
        text: its new content.
        mode: its permissions.
        owner: user and group to give it to, where this user may; None: this user's own.
    """
    import tempfile  # with random and its hashes; most commands write nothing

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            # By the handle: in a directory of another user, the name can be exchanged for a link.
            if owner is not None:
                with suppress(PermissionError):
                    os.fchown(handle, *owner)
            os.fchmod(handle, mode)
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and not error.filename:  # write and fsync name none
            error.filename = str(path)
        raise
