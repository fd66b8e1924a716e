"""Find the files with settings: the machine's in /etc/toolkit, the user's own, and the project's.

All of them are found by searching, so that each is read only if no other user could have written it
(``trust``). Each has more to say than the one before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from toolkit.model.job import PROJECT_FILE

VARIABLE = "TOOLKIT_ETC"


class SettingsFile(NamedTuple):
    """A ``toolkit.toml`` that holds cwd.

    Attributes:
        origin: how people know it.
        path: of the file, which exists.
    """

    origin: str
    path: Path


def machine_directory() -> Path:
    """Return the directory with the settings of all users of this machine; it may not exist."""
    return Path(os.environ.get(VARIABLE) or "/etc/toolkit")


def user_directory() -> Path:
    """Return the directory with this user's own settings; it may not exist."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "toolkit"


def settings_files(cwd: Path) -> Iterator[SettingsFile]:
    """Yield the settings files for a directory in rising order of precedence."""
    machine, own = machine_directory() / PROJECT_FILE, user_directory() / PROJECT_FILE
    if machine.is_file():
        yield SettingsFile(str(machine), machine)
    if own.is_file():
        yield SettingsFile(f"your {PROJECT_FILE}", own)
    for directory in (cwd, *cwd.parents):
        path = directory / PROJECT_FILE
        if path.is_file() and path not in (own, machine):
            yield SettingsFile(PROJECT_FILE, path)
            return
