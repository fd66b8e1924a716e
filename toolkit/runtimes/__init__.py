"""Runtimes: what a rank runs inside.

Each module of this package is one runtime, and ``scripts/templates/runtimes/<name>.j2`` is its
template. The registry finds it by itself. ``docs/contributing/adding-a-runtime.md`` adds one.
"""

from __future__ import annotations

from toolkit.errors import LauncherMismatchError, ToolkitError, UnknownRuntimeError
from toolkit.launchers import LAUNCHERS, offered
from toolkit.launchers.base import Launcher
from toolkit.registry import Registry
from toolkit.runtimes.shared.base import Runtime

RUNTIMES: Registry[Runtime] = Registry(__name__, "runtime", UnknownRuntimeError)
DEFAULT = "apptainer"


def get(name: str | None) -> Runtime:
    """Return the runtime of a name, or the default one.

    Raises:
        UnknownRuntimeError: no runtime has the name; the error names the nearest one.
    """
    return RUNTIMES.choose(name or DEFAULT)


def compatible_launcher(runtime: Runtime | None, launcher: Launcher) -> Launcher:
    """Return a launcher, or its substitute if only that can start ranks in a runtime.

    ``horovod-gloo`` replaces ``horovod`` where no rank would reach Slurm's PMI.
    """
    if runtime is None or not launcher.substitute or _can_start(runtime, launcher):
        return launcher
    substitute = LAUNCHERS[launcher.substitute]
    return substitute if _can_start(runtime, substitute) else launcher


def launcher_findings(runtime: Runtime, launcher: Launcher) -> list[ToolkitError]:
    """Return an error if a launcher cannot start ranks in a runtime."""
    if _can_start(runtime, launcher):
        return []
    launchers = [name for name in offered() if _can_start(runtime, LAUNCHERS[name])]
    others = [name for name, other in RUNTIMES.items() if _can_start(other, launcher)]
    return [
        LauncherMismatchError(
            f"the launcher {launcher.name} cannot start ranks by {runtime.name}",
            place="--launcher",
            next_step=f"--launcher {' or '.join(launchers)}; or --runtime {' or '.join(others)}",
        )
    ]


def _can_start(runtime: Runtime, launcher: Launcher) -> bool:
    return launcher.needs <= runtime.offers
