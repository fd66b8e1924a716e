"""Find modules in directories of the host, as Python does, and parse them; none is imported."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from toolkit.files import open_regular

LARGEST = 1 << 20  # bytes of a module; larger ones are generated
# What the parser raises: for broken or newer syntax, NUL bytes and unknown encodings, and depth.
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
_MOST_ENTRIES = 5000  # of a directory that is listed for compiled modules
_HOLDS = 200  # entries of a directory that are searched for a module


class Place(NamedTuple):
    """The place of a module.

    Attributes:
        root: the directory of the search path that holds it.
        files: of it that can be read; none of a compiled module, and of a directory without
            ``__init__.py``.
        path: of its file or directory.
    """

    root: Path
    files: tuple[Path, ...]
    path: Path


def find(name: str, roots: Iterable[Path], listings: dict[Path, list[str]]) -> Place | None:
    """Return where the top-level module ``name`` is; a package goes before a bare directory.

    Args:
        name: of the module.
        roots: directories, in the order of the search.
        listings: what is in them, as far as it was listed before; gets what is listed now.
    """
    bare: Place | None = None
    for root in roots:
        directory, file = root / name, root / f"{name}.py"
        package = directory / "__init__.py"
        if is_file(package):
            return Place(root, (package,), directory)
        if is_file(file):
            return Place(root, (file,), file)
        if root not in listings:
            listings[root] = _names(root, _MOST_ENTRIES)
        if compiled := _compiled(name, root, listings[root]):
            return Place(root, (), compiled)
        if bare is None and is_directory(directory):
            bare = Place(root, (), directory)
    return bare


def list_submodules(place: Place, parts: tuple[str, ...]) -> Iterator[Path]:
    """Return the files that Python runs for the submodules ``a.b.c`` of a package, in order."""
    directory = place.path
    for part in parts:
        if is_file(directory / f"{part}.py"):
            yield directory / f"{part}.py"
            return
        directory = directory / part
        if is_file(directory / "__init__.py"):
            yield directory / "__init__.py"


def holds_python(directory: Path) -> bool:
    """Return whether a directory has a module in it, and is no directory of data."""
    return any(name.endswith(".py") for name in _names(directory, _HOLDS))


def is_file(path: Path) -> bool:
    """Return whether there is a regular file; one that cannot be examined counts as none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for some paths


def is_directory(path: Path) -> bool:
    """Return whether there is a directory; one that cannot be examined counts as none."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for some paths


def _compiled(name: str, root: Path, entries: Iterable[str]) -> Path | None:
    """Return the file of a compiled module: ``name.cpython-311-x86_64-linux-gnu.so``."""
    plain = {f"{name}.{suffix}" for suffix in ("so", "abi3.so", "pyc", "pyx")}
    start = f"{name}.cpython-"
    for entry in entries:
        if entry in plain or (entry.startswith(start) and entry.endswith(".so")):
            return root / entry
    return None


def _names(directory: Path, most: int) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry, _ in zip(entries, range(most), strict=False)]
    except (OSError, ValueError):
        return []


def parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a module; None if it cannot be read: running it says why."""
    try:
        with open_regular(path) as stream:
            text = stream.read(LARGEST + 1)
        if len(text) > LARGEST:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns of "\d", on standard error
            return ast.parse(text)
    except _UNREADABLE:
        return None
