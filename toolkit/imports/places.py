"""The directories of the host that ranks see, and those that may be bound for them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit.imports.search import is_directory, is_file

# What an image has itself: nothing of the host is put over it.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/etc",
    "/opt",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/boot",
    "/var/lib",
)
_LEVELS = 4  # of directories above the script that are searched outside of a git work tree
_BESIDE = ("", "src", "lib", "python")


class Bound(NamedTuple):
    """A directory or file of the host and where the ranks see it."""

    source: Path
    target: Path


def normalize_path(path: str, directory: Path) -> Path:
    """Return an absolute path without ``..``, and with its links as they are."""
    return Path(os.path.normpath(directory / path))


def is_below(path: Path, roots: Iterable[Path]) -> bool:
    """Return whether a path is one of some directories, or in one."""
    return any(path.is_relative_to(root) for root in roots)


def is_system(path: Path) -> bool:
    """Return whether a path is where images have files of their own."""
    return path == Path("/") or is_below(path, map(Path, _SYSTEM))


def is_broad(path: Path, home: Path) -> bool:
    """Return whether a directory holds far more than one project: the home, or one above it."""
    return home.is_relative_to(path)


def map_to_host(path: Path, binds: Sequence[Bound]) -> Path:
    """Return what of the host the ranks see at a path; the path itself if nothing is bound."""
    fitting = [bind for bind in binds if path.is_relative_to(bind.target)]
    if not fitting:
        return path
    nearest = max(fitting, key=lambda bind: len(bind.target.parts))
    return nearest.source / path.relative_to(nearest.target)


def find_work_tree(folder: Path, home: Path) -> Path | None:
    """Return the git work tree that a directory is in; None: there is none, or it is the home."""
    for directory in (folder, *folder.parents):
        if is_broad(directory, home) or is_system(directory):
            return None
        git = directory / ".git"
        if is_file(git) or is_directory(git):
            return directory
    return None


def list_nearby(folder: Path, home: Path) -> list[Path]:
    """Return directories around a script in which people keep modules of their own."""
    top = find_work_tree(folder, home)
    directories: list[Path] = []
    for number, directory in enumerate((folder, *folder.parents)):
        outside = not is_below(directory, [top]) if top else number > _LEVELS
        if outside or is_broad(directory, home) or is_system(directory):
            break
        directories += [directory / name if name else directory for name in _BESIDE]
    return directories
