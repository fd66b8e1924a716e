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
from toolkit.images.host.sharing import lock, open_lock
from toolkit.progress import Progress
from toolkit.units import human_time

_POLL = 0.5  # seconds between two attempts


@contextmanager
def hold_image(directory: Path, name: str, *, wait: bool, progress: Progress) -> Iterator[None]:
    """Hold the lock of the image ``name`` in ``directory``; announce it before waiting for it.

    The kernel drops the lock with the process that has it, so none needs to be removed by hand.

    Raises:
        BusyError: Another process holds it, and ``wait`` is false.
        ForbiddenError: This user may not use the lock.
        BuildError: The file system has no locks.
    """
    path = directory / f".{name}.lock"
    handle = open_lock(path)
    try:
        if not _try_lock(handle, path):
            if not wait:
                raise BusyError(
                    f"the image {name} is being built {_holder(handle)}",
                    next_step="leave --no-wait out to wait for it",
                )
            progress.say("waiting", f"{name} is being built {_holder(handle)}")
            while not _try_lock(handle, path):
                time.sleep(_POLL)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        with suppress(OSError):  # another user's lock may be open for reading only
            os.truncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int, path: Path) -> bool:
    try:
        lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> str:
    """Return the lock's holder: ``by process 4711 on node1, for 2:05``."""
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        since = datetime.fromisoformat(holder["since"])
        passed = max(0.0, (datetime.now(timezone.utc) - since).total_seconds())
        return f"by process {holder['pid']} on {holder['host']}, for {human_time(passed)}"
    except (ValueError, KeyError, TypeError):
        return "by another process"
