"""One at a time: whoever brings a cluster up or down holds its lock, which goes with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import BusyError, ClusterError, ForbiddenError
from toolkit.localcluster.marker import claim, release
from toolkit.localcluster.paths import Paths, require_own


@contextlib.contextmanager
def held(paths: Paths) -> Iterator[None]:
    """Hold the lock of a cluster, whose directory is made for it, and is gone afterwards if nothing else is in it.

    Raises:
        BusyError: another `toolkit cluster up` or `down` holds it.
        ForbiddenError: the directory cannot be made or written.
        ClusterError: no cluster made what is in its place.
        UntrustedError: it is another user's, or others can write there.
    """
    try:
        handle = _take(paths)
    except PermissionError as error:
        raise ForbiddenError(
            f"the directory of the cluster cannot be used: {error.strerror}",
            place=str(error.filename),
            next_step="set TOOLKIT_CLUSTER_DIR to a directory of yours",
        ) from error
    try:
        yield
    finally:
        # A process that opens the lock meanwhile finds it moved or removed, and makes a new one.
        if not release(paths):
            paths.lock.unlink(missing_ok=True)
        with contextlib.suppress(
            OSError
        ):  # not empty; the directories above go too, where they are ours by name
            if not os.environ.get("TOOLKIT_CLUSTER_DIR"):
                paths.directory.parent.rmdir()
                paths.directory.parent.parent.rmdir()
        os.close(handle)


def _take(paths: Paths) -> int:
    while True:
        paths.directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # then only the directories above are examined
            require_own(paths)
        claim(paths)
        try:
            require_own(paths)
            paths.directory.chmod(0o700)  # sockets, keys and the database are below
            handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # whoever held it has just removed the directory
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            raise _busy(paths, holder) from None
        except OSError as error:
            os.close(handle)
            raise ClusterError(
                f"the file system of the cluster's directory has no locks: {error.strerror}",
                place=str(paths.directory),
                next_step="set TOOLKIT_CLUSTER_DIR to a directory on another one",
            ) from None
        if _is_at(handle, paths.lock):
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            return handle
        os.close(handle)  # it was removed while we waited for it


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _busy(paths: Paths, holder: str) -> BusyError:
    who = f"process {holder}" if holder else "another process"
    return BusyError(
        f"{who} is bringing cluster {paths.name} up or down",
        place=str(paths.directory),
        next_step="wait until it is through, then: toolkit cluster status",
    )
