"""The lock of an image, on this machine and on all that share the directory.

It is an flock(2) on ``.NAME.lock`` beside the image. That file is never deleted: who waits for a
lock has its file open already, and would share nothing with those who create another one. The
kernel drops the lock with the process that has it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import BuildError, BusyError, ForbiddenError
from toolkit.images.host.sharing import lock, open_lock
from toolkit.shell import Progress
from toolkit.units import human_time

_POLL = 0.5  # seconds between two attempts


def lock_path(image: Path) -> Path:
    """Return the lock file of an image."""
    return image.with_name(f".{image.name.removesuffix('.sif')}.lock")


@contextmanager
def hold_image(
    image: Path,
    action: str,
    *,
    wait: Progress | None = None,
    next_step: str = "try again when that has ended",
) -> Iterator[None]:
    """Hold the lock of an image that is being changed.

    What was read of the image before can have changed by the time that the lock is held.

    Args:
        image: The path of the SIF, which need not exist.
        action: The participle of what is done, for those who must wait: ``built``.
        wait: Announces a wait; None: do not wait.
        next_step: The advice to a user who does not wait.

    Raises:
        BusyError: Another process holds it, and there is no ``wait``.
        ForbiddenError: This user may not use the lock.
        BuildError: The file system has no locks.
    """
    path = lock_path(image)
    handle = open_lock(path)
    try:
        _take(handle, fcntl.LOCK_EX, image, wait, next_step)
        _sign(handle, action)
        try:
            yield
        finally:
            with suppress(OSError):  # readers that come after may not be able to sign
                os.truncate(handle, 0)
    finally:
        os.close(handle)


@contextmanager
def hold_for_reading(image: Path, action: str, wait: Progress) -> Iterator[None]:
    """Keep others from changing an image while it is read; those who also read may.

    An image is read all the same if it has no lock, since nothing has ever changed it, if this
    user may not use its lock, or if the file system has no locks.
    """
    path = lock_path(image)
    with ExitStack() as stack:
        with suppress(BuildError, ForbiddenError):
            if path.exists():
                handle = open_lock(path)
                stack.callback(os.close, handle)
                _take(handle, fcntl.LOCK_SH, image, wait, "")
                _sign(handle, action)
        yield


def _take(handle: int, how: int, image: Path, wait: Progress | None, next_step: str) -> None:
    path, is_announced = lock_path(image), False
    while True:
        try:
            lock(handle, how | fcntl.LOCK_NB, path)
            return
        except BlockingIOError:
            name = image.name.removesuffix(".sif")
            if wait is None:
                raise BusyError(
                    f"the image {name} is being {_holder(handle)}",
                    place=str(image),
                    next_step=next_step,
                ) from None
            if not is_announced:
                wait.say("waiting", f"{name} is being {_holder(handle)}")
            is_announced = True
            time.sleep(_POLL)


def _sign(handle: int, action: str) -> None:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text = json.dumps(
        {"action": action, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
    )
    with suppress(OSError):  # another user's lock may be open for reading only
        os.truncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _holder(handle: int) -> str:
    """Return what the lock's holder does: ``built by process 4711 on node1, for 2:05``."""
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        since = datetime.fromisoformat(holder["since"])
        passed = max(0.0, (datetime.now(timezone.utc) - since).total_seconds())
        who = f"by process {holder['pid']} on {holder['host']}, for {human_time(passed)}"
        return f"{holder.get('action', 'built')} {who}"
    except (OSError, ValueError, KeyError, TypeError):
        return "used by another process"
