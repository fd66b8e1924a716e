"""Pack the files of a Dockerfile's COPY or a definition's %files into an archive for a recipe."""

from __future__ import annotations

import base64
import fnmatch
import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ConfigError
from toolkit.files import read_text
from toolkit.units import human_size

# Bytes of an archive: a recipe is a text that people read and keep under version control.
MOST = 512_000
_LINE = 4096  # characters of base64 in a line of the recipe; a multiple of four


class Packed(NamedTuple):
    """Files as lines of base64, and their names at the top of the archive."""

    names: tuple[str, ...]
    data: tuple[str, ...]


class Context:
    """The directory that a Dockerfile's sources are relative to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ignored = _ignore_rules(directory)

    def sources(self, pattern: str, place: str) -> list[Path]:
        """Return the files and directories that a source of COPY names, sorted.

        Raises:
            ConfigError: There is none, or it lies outside the context.
        """
        relative = os.path.normpath(pattern.lstrip("/") or ".")
        if relative.startswith(".."):
            raise ConfigError(
                f"{pattern} lies outside the directory of the Dockerfile", place=place
            )
        if any(character in relative for character in "*?["):
            paths = sorted(
                path for path in self.directory.glob(relative) if not self.is_ignored(path)
            )
        else:
            paths = [
                path
                for path in [self.directory / relative]
                if os.path.lexists(path) and not self.is_ignored(path)
            ]
        if not paths:
            step = (
                f"import takes files from the directory of the Dockerfile, {self.directory}: "
                "put the Dockerfile at the top of its context"
            )
            raise ConfigError(f"there is no {pattern} to copy", place=place, next_step=step)
        return paths

    def is_ignored(self, path: Path) -> bool:
        """Return whether ``.dockerignore`` keeps a path out; the last rule that fits decides."""
        name = os.path.relpath(path, self.directory)
        ignored = False
        for pattern, out in self._ignored:
            if _fits(name, pattern):
                ignored = out
        return ignored

    def pack(self, sources: Sequence[Path], place: str, *, contents: bool = True) -> Packed:
        """Pack the sources; of a directory its contents, or itself.

        Raises:
            ConfigError: They are more than a recipe can carry, or of a kind that no archive holds.
        """
        entries = [
            entry for source in sources for entry in self._entries(source, contents=contents)
        ]
        return pack(entries, place)

    def _entries(self, source: Path, *, contents: bool) -> Iterator[tuple[str, Path]]:
        """Yield every path below a source with its name in the archive, directories first."""
        is_directory = source.is_dir() and not source.is_symlink()
        if not is_directory or not contents:
            yield source.name, source
        if is_directory:
            top = source if contents else source.parent
            for directory, names, files in os.walk(source):
                names.sort()
                for name in (*names, *sorted(files)):
                    path = Path(directory, name)
                    if not self.is_ignored(path):
                        yield os.path.relpath(path, top), path


def pack(entries: Sequence[tuple[str, Path]], place: str) -> Packed:
    """Pack paths under names, the same bytes for the same files.

    Raises:
        ConfigError: They are more than a recipe can carry, or of a kind that no archive holds.
    """
    size = sum(path.lstat().st_size for _, path in entries if path.is_file())
    if size > 20 * MOST:
        raise _too_large(size, place)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path in sorted(entries):
            if not (path.is_symlink() or path.is_file() or path.is_dir()):
                raise ConfigError(
                    f"{name} is a {_kind(path)}, which a recipe cannot carry", place=place
                )
            archive.add(path, arcname=name, recursive=False, filter=_plain)
    return _encoded(
        buffer.getvalue(),
        tuple(dict.fromkeys(name.split("/")[0] for name, _ in sorted(entries))),
        place,
    )


def pack_text(name: str, text: str, place: str) -> Packed:
    """Pack a file with this text.

    Raises:
        ConfigError: It is more than a recipe can carry.
    """
    buffer = io.BytesIO()
    data = text.encode()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o644
        archive.addfile(entry, io.BytesIO(data))
    return _encoded(buffer.getvalue(), (name,), place)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _encoded(data: bytes, names: tuple[str, ...], place: str) -> Packed:
    packed = gzip.compress(data, mtime=0)
    if len(packed) > MOST:
        raise _too_large(len(packed), place)
    text = base64.b64encode(packed).decode()
    return Packed(names, tuple(text[at : at + _LINE] for at in range(0, len(text), _LINE)))


def _too_large(size: int, place: str) -> ConfigError:
    cause = f"the files are {human_size(size)}, and a recipe carries at most {human_size(MOST)}"
    return ConfigError(
        cause,
        place=place,
        next_step="leave them out and show the directory to the job (--bind), "
        "or fetch them in a RUN",
    )


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    return "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"


def _ignore_rules(directory: Path) -> list[tuple[str, bool]]:
    try:
        lines = read_text(directory / ".dockerignore", errors="replace").splitlines()
    except OSError:
        return []
    stripped = (line.strip() for line in lines if line.strip() and not line.startswith("#"))
    return [
        (os.path.normpath(line.lstrip("!").strip().lstrip("/")), not line.startswith("!"))
        for line in stripped
    ]


def _fits(name: str, pattern: str) -> bool:
    """Return whether a rule of .dockerignore fits a path, or a directory above it."""
    parts = name.split("/")
    return any(_matches(parts[:count], pattern.split("/")) for count in range(1, len(parts) + 1))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], pattern[0])
        and _matches(parts[1:], pattern[1:])
    )
