"""Write a fixed script in place of the original, which is kept under a name of its own."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from toolkit.errors import ForbiddenError, UsageError
from toolkit.files import write_atomically


def save(file: Path, text: str) -> Path:
    """Replace a script's text; mode, owner and symbolic links to it stay.

    Returns:
        where the original is: ``FILE.orig``, or ``FILE.orig.2`` and so on if that is taken.

    Raises:
        UsageError: it is not a regular file.
        ForbiddenError: it cannot be written; then it is as it was.
    """
    target = file.resolve()
    try:
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(
                "--fix writes regular files only",
                place=str(file),
                next_step=f"toolkit lint {file}",
            )
        original = _keep(target)
        try:
            write_atomically(
                target,
                text,
                mode=stat.S_IMODE(status.st_mode),
                owner=(status.st_uid, status.st_gid),
            )
        except BaseException:
            original.unlink()
            raise
    except OSError as error:
        reason = f"the script cannot be written: {error.strerror}"
        raise ForbiddenError(
            reason,
            place=str(error.filename or file),
            next_step="toolkit lint without --fix changes nothing",
        ) from None
    return original


def _keep(target: Path) -> Path:
    """Give the file a second name, under which nothing lies yet."""
    for number in count(1):
        ending = f".{number}" if number > 1 else ""
        with suppress(FileExistsError):
            original = target.with_name(f"{target.name}.orig{ending}")
            _link_or_copy(target, original)
            return original
    raise AssertionError("numbers do not end")


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, or fs.protected_hardlinks
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("xb") as writing:
        try:
            shutil.copyfileobj(reading, writing)
            os.fsync(writing.fileno())
            shutil.copystat(source, target)
        except BaseException:
            target.unlink()
            raise
