"""The sockets of a relay on the login node: private ones, and ports for all users."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import BusyError, UntrustedError, UsageError
from toolkit.quoting import shell as quoted
from toolkit.trust import require_trusted

LONGEST_PATH = 107  # bytes: sun_path of unix(7) has 108 with the final zero
_QUEUE = 128  # connections that wait for the node's end


def private_directory() -> Path:
    """Return the directory for sockets, which only this user can enter; it is created if missing.

    It is on this host, since a socket in a shared home directory would look alive on all of them.

    Raises:
        UntrustedError: it belongs to another user, or others can enter it.
    """
    directory = Path(tempfile.gettempdir()) / f"toolkit-{os.geteuid()}"
    # Any user can take the first name, and so keep others from connecting.
    own = os.environ.get("XDG_RUNTIME_DIR")
    for each in (directory, Path(own, "toolkit") if own else directory):
        with contextlib.suppress(OSError):
            each.mkdir(mode=0o700)
        with contextlib.suppress(OSError):
            status = each.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and not status.st_mode & 0o077:
                return each
    raise UntrustedError(
        f"{directory} is not a directory of your own that only you can enter",
        place=str(directory),
        next_step="--socket PATH, in a directory of your own (chmod 700)",
    )


def require_short(
    path: Path,
    place: str = "--socket",
    next_step: str = "--socket PATH, with a shorter one; or export TMPDIR=/tmp",
) -> None:
    """Raise UsageError if a path is too long for a socket."""
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise UsageError(
            f"a socket's path has at most {LONGEST_PATH} bytes, and this one has {length}: {path}",
            place=place,
            next_step=next_step,
        )


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket that only this user can connect to; it is removed at the end.

    Raises:
        UsageError: its path is too long.
        UntrustedError: others can enter its directory, or replace it.
        BusyError: another process listens there.
    """
    require_short(path)
    if path.parent.stat().st_mode & 0o077 or path.parent.stat().st_uid != os.geteuid():
        raise UntrustedError(
            f"others can enter {path.parent}",
            place="--socket",
            next_step=f"chmod 700 {quoted(path.parent)}, if it is your own",
        )
    require_trusted(path.parent)  # who can replace a directory above takes the connections
    _remove_dead(path)
    mask = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(path))
    finally:
        os.umask(mask)
    own = path.lstat().st_ino
    with listener:
        listener.listen(_QUEUE)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            remove(path, own)


def remove(path: Path, own: int) -> None:
    """Remove a socket if it is still the one with this inode number."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == own:
            path.unlink()


def _remove_dead(path: Path) -> None:
    """Remove a socket that a killed process left.

    Raises:
        UsageError: the path is something else, which is not ours to remove.
        BusyError: another process listens there.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(
                f"{path} exists, and is not a socket",
                place="--socket",
                next_step="--socket PATH, with a path that does not exist",
            )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        process = "another process"
        try:
            probe.connect(os.fspath(path))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            process = f"process {struct.unpack('=iII', credentials)[0]}"
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise BusyError(
        f"{process} listens on {path}",
        place="--socket",
        next_step="another path: --socket PATH; or end that process (ps shows what it forwards)",
    )


@contextlib.contextmanager
def listening_locally(port: int) -> Iterator[socket.socket]:
    """Listen on a port of the loopback address, which every user of this machine can connect to.

    Raises:
        BusyError: the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise BusyError(
                f"port {port} of this machine is not available: {error.strerror}",
                place="--listen",
                next_step="name a free one: --listen PORT",
            ) from error
        listener.listen(_QUEUE)
        listener.setblocking(False)
        yield listener
