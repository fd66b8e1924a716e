"""Site files of clusters.

Those in this directory (``<name>.toml``) are shipped; the user's own are in
``~/.config/toolkit/sites``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields, replace

from toolkit import config
from toolkit.config import PROJECT_FILE, package_directory
from toolkit.errors import ConfigError, UnknownSiteError
from toolkit.files import read_toml
from toolkit.model.base import toml_value
from toolkit.model.job import Project
from toolkit.model.site import Site


def configured() -> Path:
    """Return the directory of the user's own settings: ``~/.config/toolkit``."""
    return config.user_directory()


def user_file() -> Path:
    """Return the path of the user's own ``toolkit.toml``, which may not exist.

    A project's settings take precedence over it.
    """
    return configured() / PROJECT_FILE


def directories() -> tuple[Path, ...]:
    """Return the directories of site files: the user's own, the machine's, the shipped ones."""
    machine = config.machine_directory()
    return (configured() / "sites", machine / "sites", package_directory("sites"))


def names() -> tuple[str, ...]:
    """Return the names of all known sites, sorted."""
    return tuple(
        sorted({path.stem for directory in directories() for path in directory.glob("*.toml")})
    )


def load(name: str, place: str = "--site") -> Site:
    """Read a site, with the site that it extends.

    Args:
        name: of the site.
        place: where the user names it, for the error.

    Raises:
        UnknownSiteError: with the nearest name.
        ConfigError: its file is broken, or sites extend each other in a circle.
    """
    return _load(name, (), place)


def path_of(name: str, place: str = "--site") -> Path:
    """Return the file of a site; ``place`` is where the user names it.

    Raises:
        UnknownSiteError: with the nearest name.
    """
    for directory in directories():
        path = directory / f"{name}.toml"
        if path.parent == directory and path.is_file():
            return path
    known = names()
    raise UnknownSiteError(
        f"there is no site {name!r}",
        place=place,
        choices=known,
        value=name,
        next_step=f"one of auto, {', '.join(known)}",
    )


def from_file(path: Path) -> Site:
    """Read a site from a file at any path, with the site that it extends.

    Raises:
        ConfigError: it is broken.
        UnknownSiteError: it extends a site that does not exist.
    """
    site = read_toml(path, Site, named=True)
    return _merge(load(site.extends, f"{path}, key extends"), site) if site.extends else site


def image_directories(cwd: Path) -> tuple[Path, ...]:
    """Return the directories with images of other users, in the order of search.

    They are those under ``images`` in the settings, and those of the site that is chosen there.

    Raises:
        ConfigError, UntrustedError: of a file with settings.
        UnknownSiteError: the chosen site does not exist.
    """
    names: list[str] = []
    site = ""
    for file in config.settings_files(cwd):
        project = read_toml(file.path, Project)
        names = [*project.images, *names]
        site = project.site or site
    site = os.environ.get("TOOLKIT_SITE") or site
    if site and site != "auto":
        names += load(site).images
    directories = (Path(os.path.expandvars(name)).expanduser() for name in names)
    return tuple(dict.fromkeys(directories))


def _load(name: str, within: tuple[str, ...], place: str) -> Site:
    path = path_of(name, place)
    site = read_toml(path, Site)
    if site.extends is None:
        return site
    if name in within:
        raise ConfigError(
            f"sites extend each other in a circle: {' -> '.join((*within, name))}",
            place=f"{path}, key extends",
        )
    return _merge(_load(site.extends, (*within, name), f"{path}, key extends"), site)


def _merge(base: Site, site: Site) -> Site:
    """Return ``site`` with the values of ``base`` for all keys that it does not set.

    Tables are joined key by key; every other value is replaced as a whole.
    """
    own = {
        field.name: getattr(site, field.name)
        for field in fields(Site)
        if getattr(site, field.name) != _default(field)
    }
    for key, value in own.items():
        before = getattr(base, key)
        if isinstance(value, dict) and isinstance(before, dict):
            own[key] = {**before, **value}
    return replace(base, **own)


def _default(field: FieldInfo) -> object:
    return field.default_factory() if field.default_factory is not NODEFAULT else field.default


_KEY = re.compile(r"site\s*=")


def chosen(text: str, name: str | None) -> str:
    """Return the text of the file with ``site = NAME``, and otherwise unchanged.

    If ``name`` is None, the key is removed.
    """
    lines = text.splitlines()
    first_table = next(
        (number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines)
    )
    others = [
        line
        for number, line in enumerate(lines)
        if number >= first_table or not _KEY.match(line.lstrip())
    ]
    row = [f"site = {toml_value(name)}"] if name is not None else []
    return "".join(f"{line}\n" for line in (*row, *others))
