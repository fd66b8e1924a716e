"""The directories of images, runs and caches can be written to, and what they are on; a full one is found by writing to it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from toolkit.doctor.case import Answer, Case, failed, passed, warned
from toolkit.images.store.space import file_system

_SOME = 1 << 20  # bytes


def check(case: Case) -> Answer:
    wrong, fine, memory = [], [], []
    for name, directory in case.directories.items():
        kind = file_system(existing(directory))
        reason = cannot_write(existing(directory))
        if reason:
            wrong.append(f"{name} {directory} ({kind}): {reason}")
        elif kind in ("tmpfs", "ramfs"):
            memory.append(f"{name} {directory} is in memory ({kind})")
        fine.append(f"{name} {directory} ({kind})")
    if wrong:
        return failed(
            "; ".join(wrong),
            "make room, or choose another: TOOLKIT_IMAGES for images; runs go below the directory you stand in",
        )
    if memory:
        return warned("; ".join(memory), "use a directory on a disk")
    return passed("; ".join(fine))


def existing(directory: Path) -> Path:
    """The directory, or where it is not made yet the one that it would be made in."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def cannot_write(directory: Path) -> str:
    """Why nothing can be written there; empty: it can."""
    try:
        with tempfile.TemporaryFile(dir=directory) as stream:
            stream.write(bytes(_SOME))
            stream.flush()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
