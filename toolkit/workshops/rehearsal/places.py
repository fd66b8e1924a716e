"""The directory of a rehearsal, and the removal of all that a killed rehearsal has left.

A rehearsal holds the lock of its directory. The lock ends with the process, so a directory whose
lock is free belongs to no rehearsal that still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit import shell
from toolkit.files import lock_new_directory
from toolkit.shell import Progress
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.stage import take_down

_PREFIX = "toolkit-rehearsal-"
_HOST = ".host"  # flock tells nothing about a process on another login node
HOME = "home"  # the participants' homes


@contextlib.contextmanager
def temporary_place(parent: Path) -> Iterator[Path]:
    """Create a directory that all users can enter; remove it in any case afterwards.

    Its name has the number of this process, as those of the users do.
    """
    place, lock = _create(parent)
    try:
        place.chmod(0o755)
        (place / _HOST).write_text(socket.gethostname(), encoding="utf-8")
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def _create(parent: Path) -> tuple[Path, int]:
    while True:
        place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        lock = lock_new_directory(place)
        if lock is not None:
            return place, lock


def clean(parent: Path, progress: Progress) -> list[Path]:
    """Remove all that killed rehearsals of this user have left; return their directories.

    Args:
        parent: where the directories are.
        progress: shows each of them.

    Raises:
        ToolkitError: a part cannot be removed.
    """
    removed = []
    for place in sorted(parent.glob(f"{_PREFIX}*")):
        lock = _lock_of_dead(place)
        if lock is None:
            continue
        try:
            progress.begin("clean up", f"{place.name}, of a rehearsal that was killed")
            _remove(place, progress)
            progress.end()
            removed.append(place)
        finally:
            os.close(lock)
    return removed


def _lock_of_dead(place: Path) -> int | None:
    """Lock the directory of a killed rehearsal; None if it is none, or may still run."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(place, flags)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.geteuid() and place.is_dir() and _is_of_this_host(place):
            return lock
    except OSError:
        pass  # a living one holds it
    os.close(lock)
    return None


def _is_of_this_host(place: Path) -> bool:
    try:
        return (place / _HOST).read_text(encoding="utf-8") == socket.gethostname()
    except FileNotFoundError:
        return True  # it was killed before it wrote the name


def _remove(place: Path, progress: Progress) -> None:
    """Remove the cluster with its jobs, the users, the mounts and the files of a rehearsal."""
    if (place / "c").is_dir():
        take_down(place, progress)
    accounts.remove_below(place / HOME)
    for point in mounts_below(place):
        shell.run(["umount", "--lazy", str(point)])
    shutil.rmtree(place)


def mounts_below(place: Path) -> list[Path]:
    """Return the mount points below a directory, the innermost first."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    fields = (line.split(" ")[4] for line in table.splitlines())
    points = (Path(field.encode().decode("unicode_escape")) for field in fields)
    return sorted((point for point in points if place in point.parents), reverse=True)
