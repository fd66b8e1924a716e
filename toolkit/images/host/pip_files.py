"""pip's configuration on this machine, read without pip.

To call pip takes longer than a small step of a build.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def listing(environment: Mapping[str, str] = os.environ) -> str:
    """Return the same lines as ``pip config list``.

    The files come first, the strongest of them last, then the variables of the environment.
    """
    chosen = environment.get("PIP_CONFIG_FILE", "")
    files = (
        [] if chosen == os.devnull else [*_files(environment), *([Path(chosen)] if chosen else [])]
    )
    return "\n".join((*_of_files(files), *_of_variables(environment)))


def _files(environment: Mapping[str, str]) -> list[Path]:
    """Return the files of the system, of the user, of this environment."""
    system = [
        Path(directory) / "pip/pip.conf"
        for directory in environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
        if directory
    ]
    users = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip/pip.conf"
    return [
        *system,
        Path("/etc/pip.conf"),
        Path.home() / ".pip/pip.conf",
        users,
        Path(sys.prefix) / "pip.conf",
    ]


def _of_files(files: Iterable[Path]) -> Iterator[str]:
    """Return the lines of files; a file that cannot be read counts as missing."""
    values: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        values.update(
            {
                f"{section}.{key}": value
                for section in parser.sections()
                for key, value in parser.items(section)
            }
        )
    return (f"{name}={value!r}" for name, value in values.items())


def _of_variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(environment.items()):
        if name.startswith("PIP_") and value:
            yield f":env:.{name[len('PIP_') :].lower().replace('_', '-')}={value!r}"
