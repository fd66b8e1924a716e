"""Files that are found by searching: settings, and those that are shipped with the toolkit.

Settings are the machine's in /etc/toolkit, the user's own, and the project's, each of which has
more to say than the one before; they are read only if no other user could have written them
(``trust``). Shipped files are in a checkout's top directory, or under ``toolkit/data`` of an
installed wheel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jinja2 import Environment

PROJECT_FILE = "toolkit.toml"
_PACKAGE = Path(__file__).resolve().parent


class SettingsFile(NamedTuple):
    """A ``toolkit.toml`` that holds for the current working directory.

    Attributes:
        origin: how people know it.
        path: of the file, which exists.
    """

    origin: str
    path: Path


def machine_directory() -> Path:
    """Return the directory with the settings of all users of this machine; it may not exist."""
    return Path(os.environ.get("TOOLKIT_ETC") or "/etc/toolkit")


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


def shipped(kind: str) -> Path:
    """Return ``recipes``, ``containers``, ``jobs`` or ``docs`` of this installation."""
    installed = _PACKAGE / "data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def package_directory(kind: str) -> Path:
    """Return a data directory of the package: ``sites`` or ``scripts/templates``."""
    return _PACKAGE / kind


def make_templates(kind: str, *, autoescape: bool, **options: Any) -> Environment:
    """Return the Jinja templates of a data directory, in which an unknown value is an error.

    Args:
        kind: as for ``package_directory``.
        autoescape: escape values for HTML; else filters quote them.
        options: further ones of ``jinja2.Environment``.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(package_directory(kind)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,
        **options,
    )


def is_shipped(path: Path) -> bool:
    """Return whether a file came with this installation, and is trusted as its code is."""
    places = (_PACKAGE, *(shipped(kind) for kind in ("recipes", "containers", "jobs")))
    return any(path.is_relative_to(place) for place in places)
