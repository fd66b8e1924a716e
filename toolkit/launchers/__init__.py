"""Launchers: how ranks are started.

Each module of this package is one launcher, and ``scripts/templates/<name>.sbatch.j2`` is its
template. The registry finds it by itself. ``docs/contributing/adding-a-launcher.md`` adds one.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.errors import UnknownLauncherError
from toolkit.launchers.shared.base import Launcher, Script
from toolkit.model.source import Source
from toolkit.registry import Registry

LAUNCHERS: Registry[Launcher] = Registry(
    __name__, "launcher", UnknownLauncherError, is_offered=lambda launcher: not launcher.is_internal
)
get = LAUNCHERS.choose


class Choice(NamedTuple):
    """A launcher, and why it was chosen."""

    launcher: str
    reason: str


def choose(script: Script) -> Choice:
    """Return the launcher whose claim to a script has the smallest priority number.

    This is ``--launcher auto``, the default. A plan names the launcher that was chosen.
    """
    claims = [
        (claim.priority, name, claim.reason)
        for name, launcher in LAUNCHERS.items()
        if (claim := launcher.recognize(script)) is not None
    ]
    _, name, reason = min(claims)
    return Choice(name, f"{script.name} {reason}")


def warnings(script: str, source: Source, name: str) -> tuple[str, ...]:
    """Warn of a script that uses another framework than its launcher.

    The job would start, and every rank would believe that it is alone.
    """
    launcher = LAUNCHERS.get(name)
    if launcher is None or not launcher.framework or not source.python:
        return ()
    if launcher.is_used_by(source):
        return ()
    better = LAUNCHERS[choose(Script(script, source)).launcher]
    if not better.is_used_by(source):
        return ()
    return (
        f"{script} uses {better.framework}, which the launcher {name} does not set up: "
        f"every rank may believe that it is alone; next: --launcher {better.name}",
    )
