"""The privileges with which this user can build images on this machine."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError

_SUBUID, _SUBGID = Path("/etc/subuid"), Path("/etc/subgid")
_SYS_ADMIN = 21  # the capability's number


@dataclass(frozen=True)
class BuildCommand:
    """The command that builds.

    Attributes:
        program: Apptainer or Singularity.
        options: The options of its ``build`` that this user needs.
    """

    program: str
    options: tuple[str, ...] = ()


def build_command(*, root: bool | None = None) -> BuildCommand:
    """Return the command that builds: as root directly, else in a user namespace (``--fakeroot``).

    Root without all capabilities needs a user namespace, too.

    Args:
        root: Whether the user is root; read from the process by default.

    Raises:
        NeedsInstallError: Apptainer is not installed.
        ForbiddenError: This user may not build; names what to ask the administrator for.
    """
    program = shell.require_apptainer()
    is_root = os.geteuid() == 0 if root is None else root
    status = Path("/proc/self/status").read_text()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    if is_root and has_all_capabilities(status, last):
        return BuildCommand(program)
    ranges = subordinate_range(_SUBUID), subordinate_range(_SUBGID)
    if None in ranges or shell.which("newuidmap") is None:
        raise _not_allowed(is_root)
    return BuildCommand(program, options=("--fakeroot",))


def may_mount() -> bool:
    """Return whether this is root of the machine with the right to mount and to change owners.

    Any other user needs a user namespace for that.
    """
    if os.geteuid() != 0:
        return False
    return bool(_effective_capabilities(Path("/proc/self/status").read_text()) >> _SYS_ADMIN & 1)


def namespace_ids() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the arguments of ``newuidmap`` and ``newgidmap`` that follow the process.

    This user becomes root, and the subordinate ids the others. Root with the right to mount needs
    no user namespace: both are empty.

    Raises:
        ForbiddenError: This user has no subordinate ids.
    """
    if may_mount():
        return (), ()
    users, groups = subordinate_range(_SUBUID), subordinate_range(_SUBGID)
    if users is None or groups is None:
        raise _not_allowed(os.geteuid() == 0)
    return (0, os.getuid(), 1, 1, *users), (0, os.getgid(), 1, 1, *groups)


def subordinate_range(file: Path) -> tuple[int, int] | None:
    """Return the start and length of this user's first range in ``/etc/subuid`` or the like."""
    uid = os.getuid()
    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        names = {str(uid)}
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for fields in (line.split(":") for line in lines):
        if len(fields) == 3 and fields[0] in names:
            return int(fields[1]), int(fields[2])
    return None


def has_all_capabilities(status: str, last: int) -> bool:
    """Return whether a process has every capability of its kernel.

    Args:
        status: The process's ``/proc/PID/status``.
        last: The number of the kernel's last capability.
    """
    full = (1 << (last + 1)) - 1
    return _effective_capabilities(status) & full == full


def _effective_capabilities(status: str) -> int:
    lines = (line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(next(lines, "CapEff: 0").split()[1], 16)


def _not_allowed(is_root: bool) -> ForbiddenError:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    who = "root lacks capabilities on this machine, so it" if is_root else f"the user {user}"
    has_helper = shell.which("newuidmap") is not None
    commands = [] if has_helper else ["install the package uidmap (Red Hat: shadow-utils)"]
    commands += [f"apptainer config fakeroot --add {user}"]
    ask = "run" if is_root else "ask the administrator to run"
    return ForbiddenError(
        f"{who} builds images in a user namespace (--fakeroot), which is not set up here",
        next_step=f"{ask}: {'; '.join(commands)}",
    )
