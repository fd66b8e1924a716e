"""Removal of images by age and use.

All files of an image are removed together, but for its lock, which stays for ever; and never an
image that a run uses, or that another process works on.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolkit.errors import BusyError, ForbiddenError, ImageMissingError
from toolkit.images.host.mutex import forbidden, hold_image, lock_path
from toolkit.images.host.workspace import sweep
from toolkit.images.store import store, usage
from toolkit.model.base import Model
from toolkit.units import human_age

Holds = Callable[[usage.Use], bool]

_DAY = 86400.0
_UNITS = {"h": 3600.0, "d": _DAY, "w": 7 * _DAY, "m": 30 * _DAY}


class Removal(Model, frozen=True, kw_only=True):
    """An image that can be removed.

    Attributes:
        name: of the image.
        paths: its files.
        size: of all of them, in bytes.
        why: the reason for its removal, as a message.
        reason_to_keep: why it stays; empty: it can be removed.
    """

    name: str
    paths: tuple[str, ...]
    size: int
    why: str
    reason_to_keep: str = msgspec.field(name="kept", default="")  # so `--json` names it


def prune(
    directory: Path,
    *,
    older_than: float | None,
    unused_for: float | None,
    holds: Holds,
    dry_run: bool = False,
) -> tuple[Removal, ...]:
    """Remove images by age and use, and what killed processes left.

    Each image is judged and removed under its lock. The returned images were removed, or have a
    reason to be kept, such as a process that works on them.

    Args:
        directory: of the images.
        older_than: images that were built longer ago than so many seconds; None: not by age.
        unused_for: images that nothing used for so many seconds; None: not by use. If both are
            given, both must hold.
        holds: returns whether a run that left no outcome still uses its image.
        dry_run: remove nothing.

    Raises:
        ForbiddenError: this user may not write to the directory.
    """
    if not directory.is_dir():
        return ()
    if not dry_run:
        if not os.access(directory, os.W_OK):
            raise forbidden(directory, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        sweep(directory)
    results: list[Removal] = []
    for image in _list_images(directory):
        removal = _judge(image, (older_than, unused_for), holds)
        if not dry_run and (lock_path(image).exists() or removal):
            try:
                with hold_image(image, "removed"):
                    removal = _judge(image, (older_than, unused_for), holds)
                    if removal and not removal.reason_to_keep:
                        _unlink(removal)
                    _settle(image)
            except (BusyError, ForbiddenError) as error:
                if removal:
                    reason = removal.reason_to_keep or error.cause
                    removal = replace(removal, reason_to_keep=reason)
        results += [removal] if removal else []
    return tuple(results)


def _list_images(directory: Path) -> list[Path]:
    """Return the paths of images that exist, or that have a lock."""
    names = {path.name.removesuffix(".sif") for path in directory.glob("*.sif")}
    names |= {path.name[1:].removesuffix(".lock") for path in directory.glob(".*.lock")}
    return [directory / f"{name}.sif" for name in sorted(names)]


def _judge(image: Path, ages: tuple[float | None, float | None], holds: Holds) -> Removal | None:
    if ages == (None, None) or not image.exists():
        return None
    passed = [time.time() - since for since in (image.stat().st_mtime, usage.last_used(image))]
    if any(limit and age < limit for age, limit in zip(passed, ages, strict=True)):
        return None
    runs = usage.unfinished(image, holds)
    why = f"built {human_age(passed[0])} ago, used {human_age(passed[1])} ago"
    return _removal(image, why, f"used by {runs[0]}" if runs else "")


def _removal(image: Path, why: str, reason_to_keep: str = "") -> Removal:
    name = image.name.removesuffix(".sif")
    files = (*store.paths_of(image), image.with_name(f"{name}.failed.log"))
    existing = [path for path in files if os.path.lexists(path)]
    return Removal(
        name=name,
        paths=tuple(map(str, existing)),
        size=sum(path.lstat().st_size for path in existing),
        why=why,
        reason_to_keep=reason_to_keep,
    )


def remove(image: Path, *, force: bool = False, holds: Holds) -> int:
    """Remove an image with all its files, and return the number of bytes freed.

    Args:
        image: the SIF.
        force: remove it even if a run uses it.
        holds: returns whether a run that left no outcome still uses its image.

    Raises:
        BusyError: a run that has not ended uses it, or another process works on it.
        ImageMissingError: it does not exist.
    """
    with hold_image(image, "removed"):
        runs = () if force else usage.unfinished(image, holds)
        if runs:
            raise BusyError(
                f"{image.name} is used by a run that has not ended, as far as is known",
                place=str(runs[0]),
                next_step="toolkit ps shows its state; --force removes the image all the same",
            )
        if not image.exists():
            raise ImageMissingError(
                f"the image {image.name} does not exist", next_step="toolkit image list"
            )
        removal = _removal(image, "")
        _unlink(removal)
        _settle(image)
    return removal.size


def _unlink(removal: Removal) -> None:
    """Remove files, the SIF first: a manifest without its image is not believed by any reader."""
    for path in map(Path, removal.paths):
        path.unlink(missing_ok=True)


def _settle(image: Path) -> None:
    store.settle(image)
    if not image.exists():
        usage.forget(image)
