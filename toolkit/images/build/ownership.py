"""Who a build's directory belongs to, and whether that build can still be alive.

A build holds a lock (flock) on its directories, and the kernel drops it with the last process of
the build. Where several machines share a file system without shared locks, the lock says nothing
about builds of the others; there a marker in the directory does: host, boot and process.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from toolkit.model.base import BadDataError, Model, from_json, to_json

MARKER = ".toolkit-workspace.json"
PATIENCE = 7 * 86400.0  # seconds; no build takes so long


class Owner(Model, frozen=True, kw_only=True):
    """The build that a directory was made for.

    Attributes:
        store: directory of the images that it builds.
        host: name of the machine.
        boot: the machine's boot id: after a restart no process of before is alive.
        pid: process of the tool.
        started: when that process started, in clock ticks since boot; process ids are reused.
    """

    store: str
    host: str
    boot: str
    pid: int
    started: int


def is_abandoned(owner: Owner | None, reader: Owner, *, lives: bool, age: float) -> bool:
    """Decide whether a directory whose lock is free may be removed. Pure.

    Args:
        owner: what its marker says; None: there is no marker that can be read.
        reader: the process that asks.
        lives: the owner's process is alive, as far as it can be seen from this machine.
        age: seconds since the directory was last changed.
    """
    if age > PATIENCE:
        return True
    if owner is None or owner.store != reader.store or owner.host != reader.host:
        return False
    return owner.boot != reader.boot or not lives


def this_process(store: Path) -> Owner:
    """Return the marker of a build by this process."""
    pid = os.getpid()
    return Owner(
        store=os.path.realpath(store),
        host=socket.gethostname(),
        boot=_boot(),
        pid=pid,
        started=_started(pid) or 0,
    )


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def lives(owner: Owner | None) -> bool:
    """Return whether the process of a marker is alive on this machine."""
    return owner is not None and _started(owner.pid) == owner.started


def write(directory: Path, owner: Owner) -> None:
    """Put the marker into a build's directory."""
    (directory / MARKER).write_text(to_json(owner), encoding="utf-8")


def read(directory: Path) -> Owner | None:
    """Return the marker of a build's directory, if it has one that can be read."""
    try:
        return from_json((directory / MARKER).read_text(encoding="utf-8"), Owner)
    except (OSError, UnicodeDecodeError, BadDataError):
        return None


def _started(pid: int) -> int | None:
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19],
        )
    except (OSError, IndexError, ValueError):
        return None
