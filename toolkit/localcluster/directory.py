"""Own the directory of a cluster: prove that `toolkit cluster up` made it, and lock it.

The marker in the directory is the proof, without which nothing in it is removed. A process that
brings a cluster up or down holds the lock, which ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import BusyError, ClusterError, ConfigError, ForbiddenError
from toolkit.files import read_json, write_atomically
from toolkit.localcluster.paths import Paths, require_own
from toolkit.model.base import Model, to_json


class Marker(Model, frozen=True, kw_only=True):
    """The identity of a cluster's directory.

    Attributes:
        name: of the cluster.
        directory: absolute path of the directory, so that a copy elsewhere is not accepted.
        identity: random, 32 hexadecimal digits.
    """

    name: str
    directory: str
    identity: str


def is_ours(paths: Paths) -> bool:
    """Return whether `toolkit cluster up` made this directory, for this cluster and this user."""
    if paths.directory.is_symlink() or paths.marker.is_symlink():
        return False
    try:
        marker = read_json(paths.marker, Marker)
        owner = paths.marker.stat().st_uid
    except (ConfigError, OSError):
        return False
    return (marker.name, marker.directory, owner) == (
        paths.name,
        str(paths.directory),
        os.geteuid(),
    )


def is_foreign(paths: Paths) -> bool:
    """Return whether the path of the directory has something that no cluster made."""
    if paths.directory.is_symlink():
        return True
    try:
        return any(paths.directory.iterdir()) and not is_ours(paths)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def claim(paths: Paths) -> None:
    """Create the cluster's directory with its marker in one step; keep one that is ours.

    The directory is prepared beside its path and renamed to it: the kernel refuses that if the
    path has anything but an empty directory.

    Raises:
        ClusterError: the path has something else; it is not touched.
    """
    if is_ours(paths):
        return
    refuse_foreign(paths)
    paths.directory.parent.mkdir(parents=True, exist_ok=True)
    prepared = paths.directory.with_name(f".{paths.name}.{secrets.token_hex(8)}")
    prepared.mkdir(mode=0o700)  # sockets, keys and the database will be below
    marker = Marker(name=paths.name, directory=str(paths.directory), identity=secrets.token_hex(16))
    try:
        write_atomically(prepared / paths.marker.name, to_json(marker))
        prepared.rename(paths.directory)
    except OSError:
        (prepared / paths.marker.name).unlink(missing_ok=True)
        prepared.rmdir()
        if not is_ours(paths):  # else another `up` was faster
            refuse_foreign(paths)
            raise


def refuse_foreign(paths: Paths) -> None:
    """Raise ClusterError if the directory was not made by a cluster.

    Raises:
        ClusterError: it was not; nothing in it was touched.
    """
    if is_foreign(paths):
        raise ClusterError(
            f"no cluster made {paths.directory}; nothing in it was touched",
            place="TOOLKIT_CLUSTER_DIR" if os.environ.get("TOOLKIT_CLUSTER_DIR") else None,
            next_step="choose another name (--name), "
            "or set TOOLKIT_CLUSTER_DIR to a directory that holds only clusters",
        )


def release(paths: Paths) -> bool:
    """Remove a directory in which only the marker and the lock are left; return whether it is gone.

    The caller holds the lock. The directory is renamed before it is emptied, so that no process
    finds one without its marker.
    """
    own = {paths.marker.name, paths.lock.name}
    if not is_ours(paths) or not own.issuperset(entry.name for entry in paths.directory.iterdir()):
        return False
    aside = paths.directory.with_name(f".{paths.name}.{secrets.token_hex(8)}")
    paths.directory.rename(aside)
    for name in own:
        (aside / name).unlink(missing_ok=True)
    aside.rmdir()
    return True


@contextlib.contextmanager
def locked(paths: Paths) -> Iterator[None]:
    """Hold the lock of a cluster in its directory, which is removed afterwards if it is empty.

    Raises:
        BusyError: another `toolkit cluster up` or `down` holds it.
        ForbiddenError: the directory cannot be created or written.
        ClusterError: the path has something that no cluster made.
        UntrustedError: it belongs to another user, or others can write it.
    """
    try:
        handle = _take(paths)
    except PermissionError as error:
        raise ForbiddenError(
            f"the directory of the cluster cannot be used: {error.strerror}",
            place=str(error.filename),
            next_step="set TOOLKIT_CLUSTER_DIR to a directory of your own",
        ) from error
    try:
        yield
    finally:
        # A process that opens the lock meanwhile notices the removal, and creates a new one.
        if not release(paths):
            paths.lock.unlink(missing_ok=True)
        # The default directories above are removed, too, unless they have other entries.
        with contextlib.suppress(OSError):
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
            continue  # its last holder has just removed the directory
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
                next_step="set TOOLKIT_CLUSTER_DIR to a directory on another file system",
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
        next_step="wait until it has finished, then: toolkit cluster status",
    )


def remove_files(paths: Paths, *, keep_logs: bool = False) -> bool:
    """Remove all files of the cluster but its marker and lock; return whether there were any.

    Raises:
        ClusterError: a file cannot be removed.
    """
    spared = {paths.lock.name, paths.marker.name} | ({paths.logs.name} if keep_logs else set())
    entries = [entry for entry in paths.directory.iterdir() if entry.name not in spared]
    for entry in entries:
        try:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        except OSError as error:
            raise ClusterError(
                f"a file of cluster {paths.name} cannot be removed: {error.strerror}",
                place=str(error.filename),
                next_step="see who owns it, remove it, and: toolkit cluster down",
            ) from error
    return bool(entries)
