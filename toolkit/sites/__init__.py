"""Site files of clusters.

Those in this directory (``<name>.toml``) are shipped; the user's own are in
``~/.config/toolkit/sites``.
"""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from toolkit import config
from toolkit.errors import ConfigError, UnknownSiteError
from toolkit.files import read_toml
from toolkit.model.base import toml_value
from toolkit.model.job import Project
from toolkit.model.site import Site


def directories() -> tuple[Path, ...]:
    """Return the directories of site files: the user's own, the machine's, the shipped ones."""
    own = (config.user_directory() / "sites", config.machine_directory() / "sites")
    return (*own, config.package_directory("sites"))


def names() -> tuple[str, ...]:
    """Return the names of all known sites, sorted."""
    return tuple(
        sorted({path.stem for directory in directories() for path in directory.glob("*.toml")})
    )


def load(name: str, place: str = "--site", *, within: tuple[str, ...] = ()) -> Site:
    """Read a site, with the site that it extends.

    Args:
        name: of the site.
        place: where the user names it, for the error.
        within: the sites that extend it.

    Raises:
        UnknownSiteError: with the nearest name.
        ConfigError: its file is broken, or sites extend each other in a circle.
    """
    path = path_of(name, place)
    if name in within:
        cause = f"sites extend each other in a circle: {' -> '.join((*within, name))}"
        raise ConfigError(cause, place=place)
    return _extended(read_toml(path, Site), path, (*within, name))


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
    return _extended(read_toml(path, Site, named=True), path)


def _extended(site: Site, path: Path, within: tuple[str, ...] = ()) -> Site:
    """Return a site with the values of the site that it extends.

    Tables are joined key by key; every other value is replaced as a whole.
    """
    if site.extends is None:
        return site
    base = load(site.extends, f"{path}, key extends", within=within)
    own = {}
    for field in fields(Site):
        value, before = getattr(site, field.name), getattr(base, field.name)
        is_table = field.default_factory is not NODEFAULT
        if is_table and isinstance(value, dict):
            own[field.name] = {**before, **value}
        elif value != field.default:
            own[field.name] = value
    return replace(base, **own)


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


def chosen(text: str, name: str | None) -> str:
    """Return the text of the file with ``site = NAME``, and otherwise unchanged.

    If ``name`` is None, the key is removed.
    """
    lines = text.splitlines()
    top = [*takewhile(lambda line: not line.lstrip().startswith("["), lines)]
    others = [line for line in top if not re.match(r"\s*site\s*=", line)] + lines[len(top) :]
    row = [f"site = {toml_value(name)}"] if name is not None else []
    return "".join(f"{line}\n" for line in (*row, *others))
