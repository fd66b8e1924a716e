"""Sites: what is written of clusters. ``<name>.toml`` here is shipped; a user's own lie in ``~/.config/toolkit/sites``."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.errors import UnknownSiteError
from toolkit.files import read_toml
from toolkit.model.site import Site
from toolkit.resources import package_directory


def directories() -> tuple[Path, ...]:
    """Where sites are looked for, the user's own first."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return (configured / "toolkit" / "sites", package_directory("sites"))


def names() -> tuple[str, ...]:
    """All sites that are known here, sorted."""
    return tuple(sorted({path.stem for directory in directories() for path in directory.glob("*.toml")}))


def load(name: str) -> Site:
    """Read a site.

    Raises:
        UnknownSiteError: with the nearest name.
        ConfigError: its file is broken.
    """
    for directory in directories():
        path = directory / f"{name}.toml"
        if path.parent == directory and path.is_file():
            return read_toml(path, Site)
    known = names()
    raise UnknownSiteError(
        f"there is no site {name!r}", place="--site", choices=known, value=name, next_step=f"one of auto, {', '.join(known)}"
    )
