"""Open ``/dev/fuse``, through which users mount images.

udev opens it to all users; a machine without udev has it for root only, or not at all.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from toolkit import shell
from toolkit.errors import CommandFailedError

DEVICE = Path("/dev/fuse")
_NUMBER = os.makedev(10, 229)


def state() -> Literal["ready", "closed", "absent"]:
    """Return whether every user can mount through it."""
    try:
        status = DEVICE.stat()
    except OSError:
        return "absent"
    if not stat.S_ISCHR(status.st_mode):
        return "absent"
    return "ready" if status.st_mode & 0o006 == 0o006 else "closed"


def open_to_all() -> None:
    """Create the device if it is missing, and give it the mode that udev gives it.

    Raises:
        CommandFailedError: the kernel has no FUSE, or this root may not make devices.
    """
    if state() == "absent":
        if shell.which("modprobe"):
            shell.run(["modprobe", "fuse"], check=False)
        if not DEVICE.exists():
            try:
                os.mknod(DEVICE, stat.S_IFCHR | 0o666, _NUMBER)
            except OSError as error:
                raise CommandFailedError(
                    f"{DEVICE} is missing and cannot be made: {error.strerror}",
                    next_step="start this machine or container with --device /dev/fuse; "
                    "without it every start unpacks the whole image",
                ) from error
    DEVICE.chmod(0o666)
