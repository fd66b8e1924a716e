"""The files of a Dockerfile's COPY, which are put beside the recipe."""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import ConfigError
from toolkit.files import read_text
from toolkit.images.recipe.sources import list_entries

# Relative name -> the path that it is copied from, or the text of it.
Files = dict[str, Path | str]


class Context:
    """The directory that a Dockerfile's sources are relative to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self._ignored = _ignore_rules(directory)

    def list_sources(self, pattern: str, place: str) -> list[Path]:
        """Return the files and directories that a source of COPY names, sorted.

        Raises:
            ConfigError: There is none, or it lies outside the context.
        """
        relative = os.path.normpath(pattern.lstrip("/") or ".")
        if relative.startswith(".."):
            raise ConfigError(
                f"{pattern} lies outside the directory of the Dockerfile", place=place
            )
        has_wildcard = any(character in relative for character in "*?[")
        paths = self.directory.glob(relative) if has_wildcard else [self.directory / relative]
        sources = sorted(
            path for path in paths if os.path.lexists(path) and not self._is_ignored(path)
        )
        if not sources:
            step = (
                f"import takes files from the directory of the Dockerfile, {self.directory}: "
                "put the Dockerfile at the top of its context"
            )
            raise ConfigError(f"there is no {pattern} to copy", place=place, next_step=step)
        return sources

    def list_files(self, sources: Sequence[Path]) -> Files:
        """Return sources by the names that COPY gives them: of a directory its contents.

        Raises:
            ConfigError: One cannot be read, or is of a kind that no image holds.
        """
        files: Files = {}
        try:
            for source in sources:
                real = source.resolve(strict=True)  # a link that COPY names is followed
                if not real.is_relative_to(self.directory):
                    raise ConfigError(
                        f"{source.name} leads out of the directory of the Dockerfile",
                        place=str(source),
                    )
                for name, path in list_entries(real):
                    if not self._is_ignored(path):
                        files[source.name if path == real else name] = path
        except OSError as error:
            cause = f"the files to copy cannot be read: {error.strerror}"
            raise ConfigError(cause, place=str(error.filename)) from None
        return files

    def _is_ignored(self, path: Path) -> bool:
        """Return whether ``.dockerignore`` keeps a path out; the last rule that fits decides."""
        name = os.path.relpath(path, self.directory)
        rules = (is_out for pattern, is_out in reversed(self._ignored) if _fits(name, pattern))
        return next(rules, False)


def write_files(files: Files, target: Path) -> None:
    """Write files below a new directory, if there are any, with their permissions and links."""
    if files:
        target.mkdir(parents=True)
    directories = []
    for name, origin in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(origin, str):
            path.write_text(origin, encoding="utf-8")
            path.chmod(0o644)
        elif origin.is_symlink():
            path.symlink_to(origin.readlink())
        elif origin.is_dir():
            path.mkdir(exist_ok=True)
            directories.append((path, stat.S_IMODE(origin.stat().st_mode)))
        else:
            shutil.copyfile(origin, path)
            path.chmod(stat.S_IMODE(origin.stat().st_mode))
    for path, mode in reversed(directories):  # its owner may not write to it
        path.chmod(mode)


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
