"""Whether there is room: free space of file systems, quotas of users, and temporary directories that are memory. Pure but for ``read_room``."""

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
_PATIENCE = 10.0  # seconds for a quota program; a file server that is away must not hold a build up


class Room(Model, frozen=True, kw_only=True):
    """What is known of the place where something is to be written.

    Attributes:
        directory: that is meant.
        free: bytes that its file system has.
        quota: bytes that the user may still write there; None: there is no quota, or nobody tells.
        memory: the file system is in memory (tmpfs).
    """

    directory: str
    free: int
    quota: int | None = None
    memory: bool = False

    @property
    def available(self) -> int:
        """What can be written: the smaller of both."""
        return self.free if self.quota is None else min(self.free, self.quota)


def warnings(room: Room, needs: int) -> tuple[str, ...]:
    """What people should know before they begin, although it may work.

    Args:
        needs: bytes that are going to be written.
    """
    found: list[str] = []
    if room.memory:
        found.append(
            f"{room.directory} is in memory: what is built there takes it from programs; set TOOLKIT_BUILD_TMP to a directory on a disk"
        )
    if room.quota is not None and room.quota < 2 * needs:
        found.append(
            f"of your quota in {room.directory} {human_size(room.quota)} are left; set TOOLKIT_IMAGES to a directory on scratch"
        )
    return tuple(found)


def read_room(directory: Path) -> Room:
    """Ask the machine."""
    return Room(
        directory=str(directory),
        free=shutil.disk_usage(directory).free,
        quota=_quota(directory),
        memory=file_system(directory) in ("tmpfs", "ramfs"),
    )


def file_system(directory: Path) -> str:
    """The type of the file system that a directory is on."""
    found, path = "", directory.resolve()
    longest = -1
    for line in (
        Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        _, point, kind, *_ = line.split(" ")
        mount = Path(point.encode().decode("unicode_escape"))
        if path.is_relative_to(mount) and len(mount.parts) >= longest:
            found, longest = kind, len(mount.parts)
    return found


def _quota(directory: Path) -> int | None:
    user = str(os.getuid())
    if file_system(directory) == "lustre":
        return _asked(["lfs", "quota", "-q", "-u", user, str(directory)])
    return _asked(["quota", "--no-wrap", "--raw-grace", "-f", str(_mount_of(directory))])


def _mount_of(directory: Path) -> Path:
    path = directory.resolve()
    while not path.is_mount() and path != path.parent:
        path = path.parent
    return path


def _asked(words: list[str]) -> int | None:
    if shell.which(words[0]) is None:
        return None
    try:
        return left(shell.run(words, check=False, timeout=_PATIENCE).stdout)
    except ToolkitError:
        return None


_ROW = re.compile(r"^[ \t]*\S+\s+(?P<used>\d+)\*?\s+(?P<soft>\d+)\s+(?P<hard>\d+)\b", re.MULTILINE)


def left(said: str) -> int | None:
    """Bytes that ``quota`` or ``lfs quota -q`` says are left; None where it names no limit.

    Both print a file system, what is used, and the soft and hard limits, in KiB; 0 is no limit.
    """
    found = _ROW.search(said)
    if not found:
        return None
    limits = [int(found[name]) for name in ("soft", "hard") if int(found[name])]
    return max(0, min(limits) - int(found["used"])) * _KIBIBYTE if limits else None
