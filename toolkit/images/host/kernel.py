"""Namespaces and mounts: the system calls that Python has no functions for, by ctypes.

No function imports a module late: in a user namespace, the files of Python itself may be
unreadable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2  # of umount2
_PARENT_DEATH_SIGNAL = 1  # of prctl
# The flags that a user namespace may not take away from a mount, by the words of mountinfo.
_LOCKED_FLAGS = {"nosuid": NOSUID, "nodev": NODEV, "noexec": NOEXEC}
# Of mounts below a directory that is closed to this user, or below another mount.
_OUT_OF_REACH = (errno.EACCES, errno.ENOENT, errno.EINVAL)


class CannotError(Exception):
    """This machine does not allow this to this user; nothing has been changed."""


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``."""

    place: str
    options: tuple[str, ...]


def call(name: str, *arguments: object) -> None:
    """Call a function of libc.

    Raises:
        OSError: It failed.
    """
    if getattr(LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def mount(source: str, target: str | Path, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system.

    Raises:
        OSError: It failed; names the place.
    """
    try:
        call("mount", source.encode(), os.fsencode(target), kind.encode(), flags, options.encode())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def enter(users: Sequence[int], groups: Sequence[int]) -> None:
    """Enter namespaces in which mounts are private.

    Args:
        users: The arguments of ``newuidmap`` that follow the process; empty for root, who needs no
            user namespace.
        groups: The arguments of ``newgidmap``.

    Raises:
        CannotError: The namespaces are not available.
    """
    try:
        if users:
            _become_root(users, groups)
        else:
            call("unshare", NEWNS)
        mount("none", "/", "", REC | PRIVATE)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotError(f"namespaces: {error}") from None


def _become_root(users: Sequence[int], groups: Sequence[int]) -> None:
    """Become root of a user namespace.

    A child that stays outside maps the ids, as only ``newuidmap`` may.
    """
    ready, go = os.pipe()
    pid = os.getpid()
    helper = os.fork()
    if helper == 0:
        code = 1
        with suppress(OSError, subprocess.SubprocessError):
            os.close(go)
            if os.read(ready, 1):
                for program, ranges in (("newuidmap", users), ("newgidmap", groups)):
                    subprocess.run([program, str(pid), *map(str, ranges)], check=True)
                code = 0
        os._exit(code)
    os.close(ready)
    call("unshare", NEWUSER | NEWNS)
    os.write(go, b"x")
    os.close(go)
    if wait_for(helper) != 0:
        raise OSError("newuidmap failed")
    os.setgid(0)
    os.setuid(0)
    os.setgroups([])


def in_user_namespace() -> bool:
    """Return whether this process is in a user namespace of its own."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, for whatever reason."""
    LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def wait_for(pid: int) -> int:
    """Wait for a child; return its exit code as a shell does."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def mounts() -> Iterator[Mount]:
    """Yield every mount of this namespace, the oldest first."""
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        words = line.split(b" ")
        place = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), words[4])
        yield Mount(os.fsdecode(place), tuple(words[5].decode().split(",")))


def bind(source: str, target: Path, *, writable: bool = False) -> None:
    """Show a file or directory, with everything that is mounted below it, at another place.

    It is read-only unless ``writable`` is set.

    Raises:
        OSError: It failed, or cannot be made read-only.
    """
    mount(source, target, "", BIND | REC)
    if not writable:
        real = os.path.realpath(target)
        for below in [below for below in mounts() if is_within(below.place, real)]:
            _make_read_only(below)


def is_within(path: str, directory: str) -> bool:
    """Return whether a path is a directory or below it; both without links."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def make_read_only(writable: Sequence[str]) -> None:
    """Make everything read-only in this namespace except these directories and ``/proc``.

    Ids are mapped through ``/proc``.

    Raises:
        OSError: A mount cannot be made read-only.
    """
    places = [os.path.realpath(directory) for directory in writable]
    for place in places:
        mount(place, place, "", BIND | REC)
    excepted = (*places, "/proc")
    for other in list(mounts()):
        if any(is_within(other.place, place) for place in excepted):
            continue
        try:
            _make_read_only(other)
        except OSError as error:
            if error.errno not in _OUT_OF_REACH:
                raise


def replace(directory: str, empty: str, visible: Sequence[str]) -> None:
    """Show an empty directory in place of another, in which only these paths stay visible.

    Raises:
        OSError: It failed.
    """
    paths = [
        path
        for name in visible
        for path in dict.fromkeys((os.path.realpath(name), name))
        if is_within(path, directory)
    ]
    handles = [os.open(path, os.O_PATH) for path in paths]
    mount(empty, directory, "", BIND)
    for path, handle in zip(paths, handles, strict=True):
        place = Path(path)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir() if Path(f"/proc/self/fd/{handle}").is_dir() else place.touch()
            mount(f"/proc/self/fd/{handle}", path, "", BIND | REC)
        os.close(handle)


def _make_read_only(place: Mount) -> None:
    flags = sum(flag for word, flag in _LOCKED_FLAGS.items() if word in place.options)
    mount("none", place.place, "", REMOUNT | BIND | RDONLY | flags)


def pivot(root: str) -> None:
    """Make `root`, a mount point, the root of this mount namespace, and detach everything else.

    The old root is mounted over the new one at ``/`` and detached again, so that the image needs no
    directory for it.

    Raises:
        OSError: It failed, for example because the machine's own root is an initramfs.
    """
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", DETACH)
    os.chdir("/")
