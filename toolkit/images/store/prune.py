"""Removal of images by age and use.

All files of an image are removed together, but for its lock, which stays for ever; and never an
image that a run uses, or that another process works on.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolkit.errors import BusyError, ForbiddenError, ImageMissingError, UsageError
from toolkit.images.host.mutex import hold_image, lock_path, require_writable
from toolkit.images.host.workspace import sweep
from toolkit.images.store import store, usage
from toolkit.model.base import Model
from toolkit.units import human_age

Holds = Callable[[usage.Use], bool]

_DAY = 86400.0
_UNITS = {"h": 3600.0, "d": _DAY, "w": 7 * _DAY, "m": 30 * _DAY}
_AGE = re.compile(r"(\d+)([hdwm])\Z")
FAILED_LOG = ".failed.log"
_LOG_DAYS = 7.0  # a failed build's log is of use for so long
_NOTE_DAYS = 180.0  # so are checks of an image in another directory, which may be gone


class Removal(Model, frozen=True, kw_only=True):
    """An image or a log that can be removed.

    Attributes:
        name: of the image, or of the log.
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


def seconds(age: str, place: str) -> float:
    """Convert an age such as ``30d`` to seconds.

    h, d, w and m are hours, days, weeks and months of 30 days.

    Raises:
        UsageError: the text is not an age.
    """
    match = _AGE.match(age)
    if not match:
        raise UsageError(
            f"{age!r} is not an age",
            place=place,
            next_step="a number with h, d, w or m, such as 30d",
        )
    return int(match[1]) * _UNITS[match[2]]


def prune(
    directory: Path,
    *,
    older_than: float | None,
    unused_for: float | None,
    holds: Holds | None = None,
    dry_run: bool = False,
) -> tuple[Removal, ...]:
    """Remove images by age and use, old logs, and what killed processes left.

    Each image is judged and removed under its lock. The returned images and logs were removed, or
    have a reason to be kept, such as a process that works on them.

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
        require_writable(directory)
        sweep(directory)
        _forget_elsewhere(directory)
    results: list[Removal] = []
    for image in _list_images(directory):
        judge = partial(_judge, image, (older_than, unused_for), holds)
        removals = judge()
        if not dry_run and (lock_path(image).exists() or removals):
            try:
                with hold_image(image, "removed"):
                    removals = judge()
                    for removal in removals:
                        if not removal.reason_to_keep:
                            _unlink(removal)
                    _settle(image)
            except (BusyError, ForbiddenError) as error:
                for number, each in enumerate(removals):
                    reason = each.reason_to_keep or error.cause
                    removals[number] = replace(each, reason_to_keep=reason)
        results += removals
    return tuple(results)


def _forget_elsewhere(directory: Path) -> None:
    """Remove notes on images of other directories that nothing was added to for a long time."""
    for note in directory.glob(f".*{store.ELSEWHERE}"):
        with suppress(OSError):  # it is gone, or another user's
            if time.time() - note.lstat().st_mtime > _NOTE_DAYS * _DAY:
                note.unlink()


def _list_images(directory: Path) -> list[Path]:
    """Return the paths of images that exist, that failed to build, or that have a lock."""
    names = {path.name.removesuffix(".sif") for path in directory.glob("*.sif")}
    names |= {path.name.removesuffix(FAILED_LOG) for path in directory.glob(f"*{FAILED_LOG}")}
    names |= {path.name[1:].removesuffix(".lock") for path in directory.glob(".*.lock")}
    return [directory / f"{name}.sif" for name in sorted(names)]


def _judge(
    image: Path, ages: tuple[float | None, float | None], holds: Holds | None
) -> list[Removal]:
    """Return the removal of an image, or of the log of its build that failed, if it is due."""
    now, log = time.time(), _failed_log(image)
    if image.exists() and ages != (None, None):
        passed = (now - image.stat().st_mtime, now - usage.last_used(image))
        if all(limit is None or age >= limit for age, limit in zip(passed, ages, strict=True)):
            runs = usage.unfinished(image, holds)
            why = f"built {human_age(passed[0])} ago, used {human_age(passed[1])} ago"
            name, reason = image.name.removesuffix(".sif"), f"used by {runs[0]}" if runs else ""
            return [_removal(name, (*store.paths_of(image), log), why, reason)]
    age = now - log.stat().st_mtime if log.exists() else 0.0
    why = f"a build that failed {human_age(age)} ago"
    return [_removal(log.name, (log,), why)] if age > _LOG_DAYS * _DAY else []


def _failed_log(image: Path) -> Path:
    return image.with_name(f"{image.name.removesuffix('.sif')}{FAILED_LOG}")


def _removal(name: str, paths: tuple[Path, ...], why: str, reason_to_keep: str = "") -> Removal:
    existing = [path for path in paths if os.path.lexists(path)]
    return Removal(
        name=name,
        paths=tuple(map(str, existing)),
        size=sum(path.lstat().st_size for path in existing),
        why=why,
        reason_to_keep=reason_to_keep,
    )


def remove(image: Path, *, force: bool = False, holds: Holds | None = None) -> int:
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
        removal = _removal(image.name, (*store.paths_of(image), _failed_log(image)), "")
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
