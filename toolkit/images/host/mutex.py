"""Locks of images and caches, on this machine and on all that share their directory.

The lock of an image is an flock(2) on ``.NAME.lock`` beside it. That file is never deleted: who
waits for a lock has its file open already, and would share nothing with those who create another
one. The kernel drops the lock with the process that has it.

Users may share a directory of images. Its own permission decides: where its group may write, the
group may use the locks and add to the caches, whatever the umask of the user who comes first. That
gives no user a right that the directory does not give already.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from toolkit.errors import BuildError, BusyError, ForbiddenError
from toolkit.shell import Progress
from toolkit.text import one_line

_POLL = 0.5  # seconds between two attempts
# Errors of file systems that are mounted without locks, of NFS without its lock daemon, and of
# kernels or gateways without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_LONGEST = 300  # bytes of what a holder writes about itself
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_lock(path: Path) -> int:
    """Open a lock file, and create it if it does not exist; the handle can be given to flock(2).

    Raises:
        ForbiddenError: this user may not; the message names the missing permission. Or others have
            put something else there, such as another name of a file that is not to be written.
    """
    try:
        try:
            handle = _opened(path)
        except PermissionError as refused:
            # A handle that only reads can hold a lock on most file systems; NFS refuses it later.
            try:
                handle = os.open(path, _READ)
            except FileNotFoundError:
                raise refused from None
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(handle)
            raise OSError(errno.EINVAL, "it is not the file of a lock")
    except OSError as error:
        raise forbidden(path, error) from None
    return handle


def lock(handle: int, how: int, path: Path) -> None:
    """Take a lock of flock(2) on an open file.

    Raises:
        BlockingIOError: another process holds it, and ``how`` has LOCK_NB.
        BuildError: the file system has no such locks.
        ForbiddenError: NFS locks only what is open for writing.
    """
    try:
        fcntl.flock(handle, how)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise forbidden(path, error) from None
        if error.errno not in _NO_LOCKS:
            raise
        raise BuildError(
            f"the file system of {path.parent} has no locks: {error.strerror}",
            place=str(path.parent),
            next_step="set TOOLKIT_IMAGES to a directory on another one; "
            "Lustre has locks where it is mounted with -o flock",
        ) from None


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, for the group that may write to the one above."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _share(handle, path.parent.stat(), stat.S_IRWXG | stat.S_ISGID)
        finally:
            os.close(handle)


def forbidden(path: Path, error: OSError) -> ForbiddenError:
    """Return the error for a file or directory of images that this user may not write."""
    place = path if os.path.lexists(path) else path.parent
    return ForbiddenError(
        f"{place} cannot be used: {error.strerror}",
        place=str(place),
        next_step="ask its owner; or set TOOLKIT_IMAGES to a directory of your own",
    )


def _opened(path: Path) -> int:
    with suppress(FileNotFoundError):  # first without O_CREAT, which fs.protected_regular forbids
        return os.open(path, _OPEN)
    handle = os.open(path, _OPEN | os.O_CREAT, 0o666)
    _share(handle, path.parent.stat(), stat.S_IRGRP | stat.S_IWGRP)
    return handle


def _share(handle: int, directory: os.stat_result, mode: int) -> None:
    """Give a new file or directory to the directory's group, if that may write there."""
    if not directory.st_mode & stat.S_IWGRP:
        return
    with suppress(OSError):  # another made it at the same moment, or we are not of the group
        os.fchown(handle, -1, directory.st_gid)
        os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) | mode)


def lock_path(image: Path) -> Path:
    """Return the lock file of an image."""
    return image.with_name(f".{image.name.removesuffix('.sif')}.lock")


@contextmanager
def hold_image(
    image: Path,
    action: str,
    *,
    wait: Progress | None = None,
) -> Iterator[None]:
    """Hold the lock of an image that is being changed.

    What was read of the image before can have changed by the time that the lock is held.

    Args:
        image: The path of the SIF, which need not exist.
        action: The participle of what is done, for those who must wait: ``built``.
        wait: Announces a wait; None: do not wait.

    Raises:
        BusyError: Another process holds it, and there is no ``wait``.
        ForbiddenError: This user may not use the lock.
        BuildError: The file system has no locks.
    """
    path = lock_path(image)
    handle = open_lock(path)
    try:
        _take(handle, image, wait)
        _sign(handle, action)
        try:
            yield
        finally:
            with suppress(OSError):  # who comes after may not be able to sign
                os.truncate(handle, 0)
    finally:
        os.close(handle)


def _take(handle: int, image: Path, wait: Progress | None) -> None:
    path, is_announced = lock_path(image), False
    while True:
        try:
            lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
            return
        except BlockingIOError:
            name = image.name.removesuffix(".sif")
            if wait is None:
                raise BusyError(
                    f"the image {name} is being {_holder(handle)}",
                    place=str(image),
                    next_step="try again when that has ended",
                ) from None
            if not is_announced:
                wait.say("waiting", f"{name} is being {_holder(handle)}")
            is_announced = True
            time.sleep(_POLL)


def _sign(handle: int, action: str) -> None:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text = f"{action} by process {os.getpid()} on {socket.gethostname()} since {since}"
    with suppress(OSError):  # another user's lock may be open for reading only
        os.truncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _holder(handle: int) -> str:
    text = os.pread(handle, _LONGEST, 0).decode(errors="replace")
    return one_line(text) or "used by another process"
