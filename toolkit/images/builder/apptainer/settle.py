"""Make the changes of a build step mean the same on every machine and at every time.

Runs in the step's namespaces when no process of the step is left. The step decides what is in the
directory, so no symbolic link in it is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from toolkit.images.builder.apptainer.inroot import is_below, walk
from toolkit.images.recipe.reproducible import EPOCH, is_dropped

_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")  # overlayfs's own notes in the upper directory


def settle(upper: str, lowers: Sequence[str], began: float) -> None:
    """Remove what only records the installation and overlayfs's notes, and set equal times.

    Args:
        upper: What the step changed.
        lowers: The directories that it ran on, the highest first.
        began: When it began, in seconds since 1970.
    """
    for path in list(walk(upper)):
        if is_dropped(os.path.relpath(path, upper)) and is_regular(path):
            os.unlink(path)  # noqa: PTH108
    for directory in sorted(_take_notes(upper)):
        _hide(Path(directory), Path(os.path.relpath(directory, upper)), lowers)
    for path in walk(upper):
        if os.lstat(path).st_mtime >= began:
            os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def list_byte_code(upper: str) -> list[str]:
    """Return the paths of byte code in the image that a step changed."""
    return sorted(
        f"/{os.path.relpath(path, upper)}"
        for path in walk(upper)
        if path.endswith(".pyc") and is_regular(path)
    )


def is_regular(path: str) -> bool:
    """Return whether a path is a regular file and no link."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def _take_notes(upper: str) -> set[str]:
    """Remove overlayfs's notes; return the directories that replace a lower one (opaque)."""
    opaque: set[str] = set()
    for path in walk(upper):
        if os.path.dirname(path) in opaque and stat.S_ISDIR(os.lstat(path).st_mode):  # noqa: PTH120
            opaque.add(path)
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_ATTRIBUTES):
                value = os.getxattr(path, name, follow_symlinks=False)
                if name.endswith(".opaque") and value == b"y":
                    opaque.add(path)
                os.removexattr(path, name, follow_symlinks=False)
    return opaque


def _hide(directory: Path, inner: Path, lowers: Sequence[str]) -> None:
    """Add a whiteout for each name of the lower directories at ``inner`` that this one lacks.

    Every overlay understands a device 0:0, but only those who may read the mark of an opaque
    directory understand the mark.
    """
    below: set[str] = set()
    for lower in map(Path, lowers):
        if is_below(lower, str(inner)) and (lower / inner).is_dir():
            below |= {path.name for path in (lower / inner).iterdir()}
    times = directory.stat()
    for name in below - {path.name for path in directory.iterdir()}:
        os.mknod(directory / name, stat.S_IFCHR, 0)
    os.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))
