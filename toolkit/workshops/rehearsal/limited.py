"""Directories of a limited size, in place of a quota: each is a file system in a sparse file."""

from __future__ import annotations

import contextlib
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, NeedsInstallError, UsageError
from toolkit.units import human_size

LEAST = 16 << 20
# Without a journal, which would take a part of a small home, and without a part for root.
_MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1")


def mount(directory: Path, size: int) -> None:
    """Mount a file system of a size at a directory; the file with it is beside the directory.

    Raises:
        UsageError: the size is too small for a file system.
        NeedsInstallError: mkfs.ext4 is not installed.
        CommandFailedError: this machine cannot mount it.
    """
    if size < LEAST:
        raise UsageError(
            f"a home of {human_size(size)} is too small",
            place="home_quota",
            next_step=f"at least {human_size(LEAST)}",
        )
    if shell.which("mkfs.ext4") is None:
        raise NeedsInstallError(
            "homes of a limited size need mkfs.ext4", next_step="apt-get install e2fsprogs"
        )
    image = _image(directory)
    with image.open("xb") as stream:
        image.chmod(0o600)
        stream.truncate(size)
    shell.run([*_MAKE, image])
    done = shell.run(["mount", "-o", "loop,nosuid,nodev", image, directory], check=False)
    if not done.ok:
        raise CommandFailedError(
            "a home of a limited size cannot be mounted",
            place=str(directory),
            details=done.tail(2),
            next_step="rehearse on a machine with loop devices, or without home_quota",
        )
    (directory / "lost+found").rmdir()


def unmount(directory: Path) -> None:
    """Unmount a directory, also if a process still uses it, and remove the file of its content."""
    if directory.is_mount():
        shell.run(["umount", "--lazy", directory])
    _image(directory).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()


def _image(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.ext4")
