"""Namespaces for builds, in which root or an ordinary user may mount and change owners.

``python -m toolkit.images.host.kernel USERS GROUPS PROGRAM ARGUMENT...`` runs a program in them, as
``unshare --user --map-root-user --map-auto --mount --pid --fork --kill-child`` does; util-linux
before 2.38 (Red Hat 9) has no ``--map-auto``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
NOSUID, NODEV, NOEXEC = 2, 4, 8
_NEWNS, _NEWUSER, _NEWPID = 0x20000, 0x10000000, 0x20000000
_REC, _PRIVATE = 16384, 1 << 18
_PARENT_DEATH_SIGNAL = 1  # of prctl
_SOURCE = Path(__file__).resolve().parents[3]  # the directory of our own package


class Bind(NamedTuple):
    """A file or directory of the machine, and its place in a step or a build."""

    source: str
    target: str
    writable: bool = False


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of the toolkit in any current working directory."""
    return ("env", f"PYTHONPATH={_SOURCE}", sys.executable, "-m", module, *arguments)


def namespace_command(ids: tuple[Sequence[int], Sequence[int]]) -> tuple[str, ...]:
    """Return the words before a program that shall run in namespaces; ``ids`` as for ``enter``."""
    users, groups = (",".join(map(str, numbers)) for numbers in ids)
    return module_command("toolkit.images.host.kernel", users, groups)


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
    """Continue as the first process of namespaces, which all end with it or with the caller.

    Args:
        users: The arguments of ``newuidmap`` that follow the process; empty for root, who needs no
            user namespace.
        groups: The arguments of ``newgidmap``.

    Raises:
        OSError: This machine or user has no such namespaces.
    """
    if users:
        _become_root(users, groups)
    else:
        call("unshare", _NEWNS | _NEWPID)
    mount("none", "/", "", _REC | _PRIVATE)
    die_with_parent()
    child = os.fork()
    if child:
        os._exit(wait_for(child))
    die_with_parent()


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
    call("unshare", _NEWUSER | _NEWNS | _NEWPID)
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


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a program in namespaces."""
    users, groups = (
        [int(number) for number in argument.split(",") if number] for argument in arguments[:2]
    )
    os.environ.pop("PYTHONPATH", None)
    try:
        enter(users, groups)
        os.execvp(arguments[2], list(arguments[2:]))
    except OSError as error:
        sys.exit(f"toolkit: namespaces: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
