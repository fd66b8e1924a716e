"""How an image can be built by this user on this machine."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError
from toolkit.images.build.remove import subordinate_range

_SUBUID, _SUBGID = Path("/etc/subuid"), Path("/etc/subgid")


@dataclass(frozen=True)
class BuildCommand:
    """A way to build.

    Attributes:
        program: apptainer, or what is here of its kind.
        prefix: what is put before it.
        options: of its ``build``.
    """

    program: str
    prefix: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def build_command(*, root: bool | None = None) -> BuildCommand:
    """The way to build here: as root with all its capabilities directly, else in a user namespace (``--fakeroot``).

    Args:
        root: whether we are root; found out where it is not told.

    Raises:
        NeedsInstallError: there is no Apptainer.
        ForbiddenError: this user may not; says what to ask the administrator for.
    """
    program = shell.require_apptainer()
    is_root = os.geteuid() == 0 if root is None else root
    if is_root and has_all_capabilities(
        Path("/proc/self/status").read_text(),
        int(Path("/proc/sys/kernel/cap_last_cap").read_text()),
    ):
        # Of its own, so that what debootstrap mounts is gone when it is killed.
        return BuildCommand(program, prefix=("unshare", "--mount"))
    if (
        subordinate_range(_SUBUID) is None
        or subordinate_range(_SUBGID) is None
        or shell.which("newuidmap") is None
    ):
        raise _not_allowed(is_root, has_helper=shell.which("newuidmap") is not None)
    return BuildCommand(program, options=("--fakeroot",))


_SYS_ADMIN = 21


def may_mount() -> bool:
    """Whether we are root of this machine, and may mount and change owners; else it takes a user namespace."""
    if os.geteuid() != 0:
        return False
    line = next(
        (
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("CapEff:")
        ),
        "CapEff: 0",
    )
    return bool(int(line.split()[1], 16) >> _SYS_ADMIN & 1)


def namespace_ids() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What ``newuidmap`` and ``newgidmap`` are told behind the process: we are root, and our subordinate ids are the others.

    Raises:
        ForbiddenError: we have none.
    """
    ranges = subordinate_range(_SUBUID), subordinate_range(_SUBGID)
    if ranges[0] is None or ranges[1] is None:
        raise _not_allowed(os.geteuid() == 0, has_helper=shell.which("newuidmap") is not None)
    return (0, os.getuid(), 1, 1, *ranges[0]), (0, os.getgid(), 1, 1, *ranges[1])


def has_all_capabilities(status: str, last: int) -> bool:
    """Whether a process has every capability that its kernel knows, by its ``/proc/PID/status`` and the number of the last one."""
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    full = (1 << (last + 1)) - 1
    return int(line.split()[1], 16) & full == full


def _not_allowed(is_root: bool, *, has_helper: bool) -> ForbiddenError:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    who = "root lacks capabilities on this machine, so it" if is_root else f"the user {user}"
    wanted = [] if has_helper else ["install the package uidmap (Red Hat: shadow-utils)"]
    wanted += [f"apptainer config fakeroot --add {user}"]
    cause = f"{who} builds images in a user namespace (--fakeroot), which is not set up here"
    ask = "run" if is_root else "ask the administrator to run"
    return ForbiddenError(cause, next_step=f"{ask}: {'; '.join(wanted)}")
