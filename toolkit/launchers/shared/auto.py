"""auto, the default of ``--launcher``: ask every launcher whether a script is for it.

It is no launcher itself: a plan names the one that was chosen.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared.base import Script
from toolkit.model.source import Source


class Choice(NamedTuple):
    """A launcher, and why it was chosen."""

    launcher: str
    reason: str


def choose(script: Script) -> Choice:
    """Return the launcher whose claim to a script has the smallest priority number."""
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
        f"{script} uses {better.framework}, which {name} says nothing to: "
        f"every rank may believe that it is alone; --launcher {better.name}",
    )
