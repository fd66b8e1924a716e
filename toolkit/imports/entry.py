"""Find the file that Python runs: a script, a module after ``-m``, or that of a command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.imports import search
from toolkit.imports.walk import Entry

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def find_script(path: Path) -> Entry | None:
    """Return the entry of a script; None where it is no Python.

    Python searches the directory that the script really is in, also where it is named by a link.
    """
    return Entry(path, Path(os.path.realpath(path)).parent) if path.suffix == ".py" else None


def find_module(name: str, directory: Path) -> Entry | None:
    """Return the entry of ``python -m NAME``; None where the working directory does not have it."""
    top, *parts = name.split(".")
    place = search.find(top, [directory], {})
    if place is None or not all(part.isidentifier() for part in (top, *parts)):
        return None
    files = [*place.files, *search.list_submodules(place, tuple(parts))]
    package = place.path.joinpath(*parts)
    if not files or files[-1].name == "__init__.py" or search.is_directory(package):
        main = package / "__main__.py"
        return Entry(main, directory, tuple(files)) if search.is_file(main) else None
    return Entry(files[-1], directory, tuple(files[:-1]))


def find_command(words: Sequence[str], directory: Path) -> Entry | None:
    """Return the entry of ``python ...``; None where that runs no file of the user's."""
    if not words or not is_python(words[0]):
        return None
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return find_module(next(rest, ""), directory)
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            path = Path(os.path.normpath(directory / word))
            return find_script(path) if search.is_file(path) else None
        elif word in ("-c", "-", "--version", "-V", "-h", "--help"):
            return None
    return None


def is_python(word: str) -> bool:
    """Return whether a word names a Python interpreter: ``python``, ``/usr/bin/python3.11``."""
    name = word.rpartition("/")[2]
    version = name.removeprefix("python").replace(".", "")
    return name.startswith("python") and (not version or version.isdecimal())
