"""The rules on disk: one file each, shipped with the tool; a user's own in ``~/.config/toolkit/explain``."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.explain.model import Rule
from toolkit.files import read_toml
from toolkit.resources import package_directory


def directories() -> tuple[Path, ...]:
    """Where rules are looked for; a later one's rule of the same name wins."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return (package_directory("explain") / "rules", configured / "toolkit" / "explain")


def rules() -> dict[str, Rule]:
    """Every rule by its name.

    Raises:
        ConfigError: a file is broken.
    """
    found = {
        path.stem: path for directory in directories() for path in sorted(directory.glob("*.toml"))
    }
    return {name: read_toml(path, Rule) for name, path in sorted(found.items())}
