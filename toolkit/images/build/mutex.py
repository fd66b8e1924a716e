"""One build of an image at a time, on this machine and on all that share the directory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import BusyError
from toolkit.images.store.sharing import lock, open_lock
from toolkit.progress import Progress
from toolkit.units import human_time

_POLL = 0.5  # seconds between two attempts


@contextmanager
def hold_image(directory: Path, name: str, *, wait: bool, progress: Progress) -> Iterator[None]:
    """Hold the image ``name`` of ``directory`` for a build; waits for who holds it, saying so.

    The lock is the kernel's: it is gone with the process that has it, so there is none to clear
    away by hand.

    Raises:
        BusyError: somebody else holds it, and ``wait`` is false.
        ForbiddenError: this user may not use the lock.
        BuildError: the file system has no locks.
    """
    path = directory / f".{name}.lock"
    handle = open_lock(path)
    try:
        if not _try(handle, path):
            if not wait:
                raise BusyError(
                    f"the image {name} is being built {_holder(handle)}",
                    next_step="leave --no-wait out to wait for it",
                )
            progress.say("waiting", f"{name} is being built {_holder(handle)}")
            while not _try(handle, path):
                time.sleep(_POLL)
        _sign(handle)
        yield
    finally:
        os.close(handle)


def _try(handle: int, path: Path) -> bool:
    try:
        lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return False
    return True


def _sign(handle: int) -> None:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with suppress(OSError):  # only read: another user made it, and its group may not write
        os.truncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _holder(handle: int) -> str:
    """Who signed the lock: ``by process 4711 on node1, for 2:05``."""
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        passed = (
            datetime.now(timezone.utc) - datetime.fromisoformat(holder["since"])
        ).total_seconds()
        return f"by process {holder['pid']} on {holder['host']}, for {human_time(max(0.0, passed))}"
    except (ValueError, KeyError, TypeError):
        return "by another process"
