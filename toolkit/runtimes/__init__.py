"""Runtimes: what a rank runs inside.

Each module of this package is one runtime, and ``scripts/templates/runtimes/<name>.j2`` is its
template. The registry finds it by itself. ``docs/contributing/adding-a-runtime.md`` adds one.
"""

from __future__ import annotations

from toolkit.errors import LauncherMismatchError, ToolkitError, UnknownRuntimeError
from toolkit.launchers import LAUNCHERS
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


def noun(name: str | None) -> str:
    """Return ``image`` or ``environment``, as messages call what ranks run in."""
    runtime = RUNTIMES.get(name or DEFAULT)
    return runtime.noun if runtime else "image"


def compatible_launcher(runtime: str | None, launcher: str) -> str:
    """Return a launcher, or its substitute if only that can start ranks in a runtime.

    ``horovod-gloo`` replaces ``horovod`` where no rank would reach Slurm's PMI.
    """
    name = runtime or DEFAULT
    substitute = LAUNCHERS[launcher].substitute
    if not substitute or name not in RUNTIMES or _can_start(name, launcher):
        return launcher
    return substitute if _can_start(name, substitute) else launcher


def launcher_findings(runtime: str, launcher: str) -> list[ToolkitError]:
    """Return an error if a launcher cannot start ranks in a runtime."""
    if _can_start(runtime, launcher):
        return []
    launchers = [name for name in LAUNCHERS.offered() if _can_start(runtime, name)]
    others = [name for name in RUNTIMES if _can_start(name, launcher)]
    return [
        LauncherMismatchError(
            f"the launcher {launcher} cannot start ranks by {runtime}",
            place="--launcher",
            next_step=f"--launcher {' or '.join(launchers)}; or --runtime {' or '.join(others)}",
        )
    ]


def _can_start(runtime: str, launcher: str) -> bool:
    return LAUNCHERS[launcher].needs <= RUNTIMES[runtime].offers
