"""The files of the building machine that steps copy into an image."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ConfigError
from toolkit.files import hash_file
from toolkit.images.recipe.block import Source
from toolkit.images.recipe.digests import hash_texts


def read_source(path: Path, directory: Path) -> Source:
    """Return what a step copies.

    Args:
        path: a file or a directory.
        directory: of the recipe.

    Raises:
        ConfigError: It cannot be read, is empty, or holds what no image does.
    """
    shown = os.path.relpath(path, directory)
    if path.is_symlink():  # it may lead to what its author cannot read
        raise ConfigError(
            f"{shown} of a step `copy` is a link", place=str(path), next_step="name its target"
        )
    try:
        entries = list(list_entries(path))
        digest = hash_texts(*(_describe(name, entry) for name, entry in entries))
    except OSError as error:
        raise ConfigError(
            f"the files of a step cannot be read: {error.strerror}",
            place=error.filename and str(error.filename),
            next_step="`source` of a step `copy` is relative to the recipe",
        ) from None
    if not path.is_dir():
        return Source(path=str(path), shown=shown, digest=digest, mode=f"{_mode(path):o}")
    if not entries:
        raise ConfigError(f"the directory {shown} of a step `copy` is empty", place=str(path))
    names = tuple(name for name, _ in entries if "/" not in name)
    return Source(path=str(path), shown=shown, digest=digest, names=names)


def list_entries(top: Path) -> Iterator[tuple[str, Path]]:
    """Yield each path below a directory with its relative name, or a file itself, in order.

    Links are not followed.

    Raises:
        ConfigError: One is neither a file, a directory nor a link.
        OSError: A directory cannot be read.
    """
    paths = [top]
    if top.is_dir() and not top.is_symlink():
        paths = [
            Path(directory, name)
            for directory, directories, files in os.walk(top, onerror=_raise)
            for name in (*directories, *files)
        ]
    for path in sorted(paths):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            cause = "it is a pipe, socket or device, which no image holds"
            raise ConfigError(cause, place=str(path))
        yield (os.path.relpath(path, top) if path != top else path.name), path


def _raise(error: OSError) -> None:
    raise error


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _describe(name: str, path: Path) -> str:
    """Return a text that changes when an image would have something else."""
    if path.is_symlink():
        return f"{name}\0{path.readlink()}"
    return f"{name}\0{_mode(path):o}\0{'' if path.is_dir() else hash_file(path)}"
