"""Launchers: how ranks are started.

Each module of this package is one launcher, and ``scripts/templates/<name>.sbatch.j2`` is its
template. The registry finds it by itself. ``docs/contributing/adding-a-launcher.md`` adds one.
"""

from __future__ import annotations

from toolkit.errors import UnknownLauncherError
from toolkit.launchers.shared.base import Launcher
from toolkit.registry import Registry

LAUNCHERS: Registry[Launcher] = Registry(__name__, __path__, "LAUNCHER")


def get(name: str) -> Launcher:
    """Return the launcher of a name.

    Raises:
        UnknownLauncherError: no launcher has the name; the error names the nearest one.
    """
    if name not in LAUNCHERS:
        raise UnknownLauncherError(
            f"there is no launcher {name!r}",
            place="--launcher",
            choices=LAUNCHERS,
            value=name,
            next_step=f"one of {', '.join(LAUNCHERS)}",
        )
    return LAUNCHERS[name]
