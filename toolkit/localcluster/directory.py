"""Own the directory of a cluster: prove that `toolkit cluster up` made it, and lock it.

The marker in the directory is the proof, without which nothing in it is removed. A process that
brings a cluster up or down holds the lock, which ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from toolkit.errors import BusyError, ClusterError
from toolkit.files import read_text, write_atomically
from toolkit.localcluster.paths import Paths, require_own
from toolkit.trust import require_trusted

_MARKER_BYTES = 4096


def is_ours(paths: Paths) -> bool:
    """Return whether `toolkit cluster up` made this directory, for this cluster and this user.

    The marker has the directory's path, so that a copy elsewhere is not accepted.
    """
    if paths.directory.is_symlink() or paths.marker.is_symlink():
        return False
    try:
        is_own = paths.marker.stat().st_uid == os.geteuid()
        return is_own and read_text(paths.marker, _MARKER_BYTES) == str(paths.directory)
    except (OSError, UnicodeDecodeError):
        return False


def refuse_foreign(paths: Paths) -> None:
    """Check that a cluster made the directory, or that there is none, or an empty one.

    Raises:
        ClusterError: it has something else; nothing in it was touched.
    """
    try:
        # A marker that was being written when its writer was killed is no file of others.
        is_foreign = paths.directory.is_symlink() or any(
            not entry.name.startswith(f".{paths.marker.name}.")
            for entry in paths.directory.iterdir()
        )
    except FileNotFoundError:
        return
    except NotADirectoryError:
        is_foreign = True
    if is_foreign and not is_ours(paths):
        raise ClusterError(
            f"no cluster made {paths.directory}; nothing in it was touched",
            place="TOOLKIT_CLUSTER_DIR" if os.environ.get("TOOLKIT_CLUSTER_DIR") else None,
            next_step="choose another name (--name), "
            "or set TOOLKIT_CLUSTER_DIR to a directory that holds only clusters",
        )


@contextlib.contextmanager
def locked(paths: Paths) -> Iterator[None]:
    """Hold the lock of a cluster and have its directory, which is removed afterwards if empty.

    Raises:
        BusyError: another `toolkit cluster up` or `down` holds it.
        ClusterError: the path has something that no cluster made.
        UntrustedError: it belongs to another user, or others can write it.
    """
    handle = _take_lock(paths)
    try:
        _claim(paths)
        yield
    finally:
        _release(paths)
        os.close(handle)


def _take_lock(paths: Paths) -> int:
    """Return the open lock file, which stays beside the directory: only its lock ends."""
    paths.directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # then only the directories above are examined
        require_own(paths)
    refuse_foreign(paths)
    require_trusted(paths.lock)  # others can create it first in a directory such as /tmp
    handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise BusyError(
                f"another process is bringing cluster {paths.name} up or down",
                place=str(paths.directory),
                next_step="wait until it has finished, then: toolkit cluster status",
            ) from None
        raise ClusterError(
            f"the file system of the cluster's directory has no locks: {error.strerror}",
            place=str(paths.directory),
            next_step="set TOOLKIT_CLUSTER_DIR to a directory on another file system",
        ) from None
    return handle


def _claim(paths: Paths) -> None:
    """Create the directory with its marker; sockets, keys and the database will be below."""
    paths.directory.mkdir(mode=0o700, exist_ok=True)
    require_own(paths)
    paths.directory.chmod(0o700)
    if not is_ours(paths):
        write_atomically(paths.marker, str(paths.directory))


def _release(paths: Paths) -> None:
    """Remove the directory if nothing but its marker is left."""
    with contextlib.suppress(OSError):
        if is_ours(paths) and [*paths.directory.iterdir()] == [paths.marker]:
            paths.marker.unlink()
            paths.directory.rmdir()


def remove_files(paths: Paths) -> bool:
    """Remove all files of the cluster but its marker; return whether there were any."""
    entries = [entry for entry in paths.directory.iterdir() if entry != paths.marker]
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return bool(entries)
