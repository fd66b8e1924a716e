"""Find modules in directories of this machine, as Python does. None is imported.

A path that cannot be examined counts as none: ``Path.is_file`` would raise for some of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from toolkit import git

_MOST_ENTRIES = 5000  # of a directory that is listed
_COMPILED = (".so", ".pyc", ".pyx")
_BESIDE = ("", "src", "lib", "python")  # where people keep modules of their own
_LEVELS = 5  # of directories, from that of the script up
# What an image has itself: nothing of the host is put over it.
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/dev"),
    *("/run", "/boot", "/var/lib"),
)


def module_file(name: str, directory: Path) -> Path | None:
    """Return the file that ``python -m NAME`` runs; None if the directory does not have it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    path = directory.joinpath(*parts)
    main, file = path / "__main__.py", path.with_name(f"{path.name}.py")
    if os.path.isfile(main):
        return main
    return file if file in files(directory, parts) else None


def work_trees(folder: Path, directory: Path) -> dict[str, str]:
    """Return the git work trees of the script's directory and of the working directory -> why."""
    trees = {_work_tree(folder): "the script", _work_tree(directory): "the working directory"}
    return {str(tree): f"the git work tree of {name}" for tree, name in trees.items() if tree}


def files(directory: Path, parts: Iterable[str]) -> list[Path]:
    """Return the files that Python runs for the module ``a.b.c`` of a directory, in order."""
    files = []
    for part in parts:
        package, file = directory / part / "__init__.py", directory / f"{part}.py"
        if os.path.isfile(package):
            files.append(package)
        elif os.path.isfile(file):
            return [*files, file]
        directory = directory / part
    return files


def find(name: str, directories: Iterable[Path]) -> Path | None:
    """Return the place of a module; a directory without ``__init__.py`` comes last."""
    bare = None
    for directory in directories:
        package, file = directory / name, directory / f"{name}.py"
        if os.path.isfile(package / "__init__.py"):
            return package
        if os.path.isfile(file):
            return file
        for entry in entries(directory):
            if entry.endswith(_COMPILED) and entry.partition(".")[0] == name:
                return directory / entry
        if bare is None and os.path.isdir(package):
            bare = package
    return bare


@lru_cache
def entries(directory: Path) -> list[str]:
    """Return the names of what is in a directory, as far as it is listed."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in islice(entries, _MOST_ENTRIES)]
    except (OSError, ValueError):
        return []


def nearby(folder: Path, directory: Path) -> Iterator[Path]:
    """Yield where people keep modules that the ranks do not search by themselves.

    Args:
        folder: the directory of the script.
        directory: the working directory of the ranks.
    """
    home = Path.home()
    for start in (directory, folder):
        top = _work_tree(start) or Path("/")
        for place in (start, *start.parents)[:_LEVELS]:
            if place.is_relative_to(top) and not (home.is_relative_to(place) or is_system(place)):
                yield from (place / name for name in _BESIDE)


def _work_tree(folder: Path) -> Path | None:
    """Return the git work tree of a directory; None for one that is broader than a project."""
    tree = git.top(folder)
    is_broad = tree is None or Path.home().is_relative_to(tree) or is_system(tree)
    return None if is_broad else tree


def is_system(path: Path) -> bool:
    """Return whether a path is where images have files of their own."""
    return path == Path("/") or any(path.is_relative_to(place) for place in _SYSTEM)
