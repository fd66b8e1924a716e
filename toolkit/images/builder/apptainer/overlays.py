"""Mount the file systems of a build's steps, and make overlayfs's records mean the same everywhere.

There is one kind of overlay, whose options are known.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from toolkit.images.builder.apptainer.inroot import is_below, walk
from toolkit.images.builder.apptainer.protocol import Lower, Task
from toolkit.images.host.kernel import NODEV, CannotError, in_user_namespace, mount

# All that a directory or file is must be in the upper directory itself; ``userxattr`` implies
# the other two options.
_OVERLAY = {True: "index=off,userxattr", False: "index=off,redirect_dir=off,metacopy=off"}
_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")  # overlayfs's own notes in the upper directory


def show(lower: Lower, target: Path) -> None:
    """Show a file system at ``target``: a directory by a link, a squashfs by the kernel or FUSE.

    Raises:
        CannotError: Neither works.
    """
    if lower.offset is None:
        target.symlink_to(lower.path)
        return
    target.mkdir()
    option, place = f"offset={lower.offset}", (lower.path, str(target))
    commands = [
        ["mount", "-t", "squashfs", "-o", f"loop,ro,{option}", *place],
        ["squashfuse_ll", "-o", option, *place],
        ["squashfuse", "-o", option, *place],
    ]
    reasons: list[str] = []
    for argv in commands[1 if in_user_namespace() else 0 :]:
        if shutil.which(argv[0]) is None:
            continue
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return
        reasons += result.stderr.strip().splitlines()[-1:]
    reason = "; ".join(reasons) or "squashfuse is not installed"
    raise CannotError(f"{lower.path} cannot be mounted: {reason}")


def overlay(lowers: Sequence[str], upper: str | None, target: str) -> None:
    """Mount directories, the highest first, with ``upper`` for changes, or read-only."""
    options = f"lowerdir={':'.join(lowers)},{_OVERLAY[in_user_namespace()]}"
    if upper is not None:
        Path(upper).mkdir(exist_ok=True)
        # The image's root keeps its mode and owner.
        shutil.copystat(lowers[0], upper)
        status = Path(lowers[0]).stat()
        os.chown(upper, status.st_uid, status.st_gid)
        # A new directory each time: the kernel refuses one that a volatile mount has used.
        options += f",upperdir={upper},workdir={tempfile.mkdtemp(prefix='w', dir='.')}"
    try:
        # An upper directory is worthless after a power failure, and apt otherwise waits for the
        # disk after every file.
        mount("overlay", target, "overlay", NODEV, f"{options},volatile")
    except OSError:
        mount("overlay", target, "overlay", NODEV, options)


def tidy(task: Task) -> None:
    """Make the upper directory of a completed task mean the same everywhere.

    Notes of overlayfs are removed. A directory that overlayfs marked as new (opaque), because it
    replaces a lower one, gets a whiteout for each name that must disappear: every overlay
    understands a device 0:0, but only those who may read the mark understand the mark.
    """
    opaque: set[str] = set()
    for path in walk(task.upper):
        if os.path.dirname(path) in opaque and stat.S_ISDIR(os.lstat(path).st_mode):  # noqa: PTH120
            opaque.add(path)
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_ATTRIBUTES):
                value = os.getxattr(path, name, follow_symlinks=False)
                if name.endswith(".opaque") and value == b"y":
                    opaque.add(path)
                os.removexattr(path, name, follow_symlinks=False)
    for path in sorted(opaque):
        _hide(Path(path), Path(os.path.relpath(path, task.upper)), task.lowers)


def _hide(directory: Path, inner: Path, lowers: Sequence[str]) -> None:
    """Add a whiteout for each name of the lower directories at ``inner`` that this one lacks."""
    below: set[str] = set()
    for lower in map(Path, lowers):
        if is_below(lower, str(inner)) and (lower / inner).is_dir():
            below |= {path.name for path in (lower / inner).iterdir()}
    times = directory.stat()
    for name in below - {path.name for path in directory.iterdir()}:
        os.mknod(directory / name, stat.S_IFCHR, 0)
    os.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))
