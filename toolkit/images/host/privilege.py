"""The privileges with which this user can build images on this machine."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError

_SUBUID, _SUBGID = Path("/etc/subuid"), Path("/etc/subgid")
_STATUS = Path("/proc/self/status")
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
_SYS_ADMIN = 21  # the capability's number


def build_options() -> tuple[str, ...]:
    """Return the options of ``apptainer build`` that this user needs.

    Root builds directly. Any other user, and root without all capabilities, needs a user namespace:
    ``--fakeroot``.

    Raises:
        NeedsInstallError: Apptainer is not installed.
        ForbiddenError: This user may not build; names what to ask the administrator for.
    """
    shell.require_apptainer()
    if os.geteuid() == 0 and has_all_capabilities():
        return ()
    if None in map(subordinate_range, (_SUBUID, _SUBGID)) or shell.which("newuidmap") is None:
        raise _not_allowed()
    return ("--fakeroot",)


def may_mount() -> bool:
    """Return whether this is root of the machine with the right to mount and to change owners.

    Any other user needs a user namespace for that.
    """
    return os.geteuid() == 0 and bool(_effective_capabilities() >> _SYS_ADMIN & 1)


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
        raise _not_allowed()
    return (0, os.getuid(), 1, 1, *users), (0, os.getgid(), 1, 1, *groups)


def subordinate_range(file: Path) -> tuple[int, int] | None:
    """Return the start and length of this user's first range in ``/etc/subuid`` or the like."""
    names = (str(os.getuid()), _user_name())
    try:
        rows = [line.split(":") for line in file.read_text().splitlines()]
    except OSError:
        return None
    own = (row for row in rows if len(row) == 3 and row[0] in names)
    return next(((int(start), int(length)) for _, start, length in own), None)


def has_all_capabilities() -> bool:
    """Return whether this process has every capability of its kernel."""
    full = (1 << (int(_LAST_CAPABILITY.read_text()) + 1)) - 1
    return _effective_capabilities() & full == full


def _effective_capabilities() -> int:
    match = re.search(r"^CapEff:\s*([0-9a-f]{1,64})$", _STATUS.read_text(), re.MULTILINE)
    return int(match[1], 16) if match else 0


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _not_allowed() -> ForbiddenError:
    user = _user_name()
    return ForbiddenError(
        f"{user} builds images in a user namespace (--fakeroot), which is not set up here",
        next_step="ask the administrator to install newuidmap (package uidmap or shadow-utils), and"
        f" to run: apptainer config fakeroot --add {user}; or build by Docker: --engine docker",
    )
