"""The room that a quota leaves a user, by the programs that know of quotas."""

from __future__ import annotations

import os
import re
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.images.host.workspace import file_system

_PATIENCE = 10.0  # seconds: an absent file server must not hold a run up
_KIBIBYTE = 1024
_ROW = re.compile(r"^[ \t]*\S+\s+(?P<used>\d+)\*?\s+(?P<soft>\d+)\s+(?P<hard>\d+)\b", re.MULTILINE)


def read_quota(directory: Path) -> int | None:
    """Return the bytes that this user may still write; None if no quota is known."""
    if file_system(directory) == "lustre":
        words = ["lfs", "quota", "-q", "-u", str(os.getuid()), str(directory)]
    else:
        mount = directory.resolve()
        while not mount.is_mount() and mount != mount.parent:
            mount = mount.parent
        words = ["quota", "--no-wrap", "--raw-grace", "-f", str(mount)]
    if shell.which(words[0]) is None:
        return None
    try:
        return parse_quota(shell.run(words, check=False, timeout=_PATIENCE).stdout)
    except ToolkitError:
        return None


def parse_quota(output: str) -> int | None:
    """Return the bytes left by the output of ``quota`` or ``lfs quota -q``; None without a limit.

    Both print a file system, the usage, and the soft and hard limits, in KiB; 0 is no limit.
    """
    row = _ROW.search(output)
    if not row:
        return None
    limits = [int(row[name]) for name in ("soft", "hard") if int(row[name])]
    return max(0, min(limits) - int(row["used"])) * _KIBIBYTE if limits else None
