"""Room for images: free space of file systems, quotas, and temporary directories in memory.

Pure but for ``read_room`` and ``file_system``.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.model.base import Model
from toolkit.units import human_size

_KIBIBYTE = 1024
_PATIENCE = 10.0  # seconds for a quota program; an absent file server must not hold a build up


class Room(Model, frozen=True, kw_only=True):
    """The room in a directory that is to be written to.

    Attributes:
        directory: the directory.
        free: free bytes of its file system.
        quota: bytes that the user may still write there; None: there is no quota, or it is unknown.
        memory: the file system is in memory (tmpfs).
    """

    directory: str
    free: int
    quota: int | None = None
    memory: bool = False

    @property
    def available(self) -> int:
        """The bytes that can be written: the smaller of both."""
        return self.free if self.quota is None else min(self.free, self.quota)


def warnings(room: Room, needs: int) -> tuple[str, ...]:
    """Return warnings about a place where the build may still succeed.

    Args:
        room: in the directory.
        needs: bytes that are going to be written.
    """
    messages: list[str] = []
    if room.memory:
        messages.append(
            f"{room.directory} is in memory: what is built there takes it from programs; "
            "set TOOLKIT_BUILD_TMP to a directory on a disk"
        )
    if room.quota is not None and room.quota < 2 * needs:
        messages.append(
            f"of your quota in {room.directory} {human_size(room.quota)} are left; "
            "set TOOLKIT_IMAGES to a directory on scratch"
        )
    return tuple(messages)


def read_room(directory: Path) -> Room:
    """Read the free space and the quota of a directory."""
    return Room(
        directory=str(directory),
        free=shutil.disk_usage(directory).free,
        quota=_quota(directory),
        memory=file_system(directory) in ("tmpfs", "ramfs"),
    )


def file_system(directory: Path) -> str:
    """Return the type of the file system that a directory is on."""
    file_system_type, path = "", directory.resolve()
    longest = -1
    for line in (
        Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        _, point, kind, *_ = line.split(" ")
        mount = Path(point.encode().decode("unicode_escape"))
        if path.is_relative_to(mount) and len(mount.parts) >= longest:
            file_system_type, longest = kind, len(mount.parts)
    return file_system_type


def _quota(directory: Path) -> int | None:
    user = str(os.getuid())
    if file_system(directory) == "lustre":
        return _quota_left(["lfs", "quota", "-q", "-u", user, str(directory)])
    return _quota_left(["quota", "--no-wrap", "--raw-grace", "-f", str(_mount_of(directory))])


def _mount_of(directory: Path) -> Path:
    path = directory.resolve()
    while not path.is_mount() and path != path.parent:
        path = path.parent
    return path


def _quota_left(words: list[str]) -> int | None:
    if shell.which(words[0]) is None:
        return None
    try:
        return left(shell.run(words, check=False, timeout=_PATIENCE).stdout)
    except ToolkitError:
        return None


_ROW = re.compile(r"^[ \t]*\S+\s+(?P<used>\d+)\*?\s+(?P<soft>\d+)\s+(?P<hard>\d+)\b", re.MULTILINE)


def left(output: str) -> int | None:
    """Return the bytes left by the output of ``quota`` or ``lfs quota -q``; None without a limit.

    Both print a file system, the usage, and the soft and hard limits, in KiB; 0 is no limit.
    """
    row = _ROW.search(output)
    if not row:
        return None
    limits = [int(row[name]) for name in ("soft", "hard") if int(row[name])]
    return max(0, min(limits) - int(row["used"])) * _KIBIBYTE if limits else None
