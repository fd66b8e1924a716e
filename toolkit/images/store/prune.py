"""Removal of images by age and use.

All files of an image are removed together, and never an image that a run uses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from toolkit.errors import BusyError, UsageError
from toolkit.images.store import usage
from toolkit.images.store.sbom import ENDING
from toolkit.model.base import Model
from toolkit.units import human_age

Holds = Callable[[usage.Use], bool]

_DAY = 86400.0
_UNITS = {"h": 3600.0, "d": _DAY, "w": 7 * _DAY, "m": 30 * _DAY}
_AGE = re.compile(r"(\d+)([hdwm])\Z")
FAILED_LOG = ".failed.log"
_LOG_DAYS = 7.0  # a failed build's log is of use for so long


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


def files_of(image: Path) -> tuple[Path, ...]:
    """Return the existing files of an image.

    They are the image itself, its manifest, bill of materials, logs, and the lock file of builds.
    """
    name = image.name.removesuffix(".sif")
    beside = (
        image,
        *(image.with_name(f"{name}{ending}") for ending in (".json", ENDING, ".log", FAILED_LOG)),
    )
    return tuple(path for path in (*beside, image.with_name(f".{name}.lock")) if path.exists())


def candidates(
    directory: Path,
    *,
    older_than: float | None,
    unused_for: float | None,
    holds: Holds | None = None,
) -> tuple[Removal, ...]:
    """Return the images and logs that can be removed.

    Args:
        directory: of the images.
        older_than: images that were built longer ago than so many seconds; None: not by age.
        unused_for: images that nothing used for so many seconds; None: not by use. If both are
            given, both must hold.
        holds: returns whether a run that left no outcome still uses its image.
    """
    now = time.time()
    images = (
        sorted(directory.glob("*.sif")) if older_than is not None or unused_for is not None else []
    )
    removals = [
        removal
        for image in images
        if (removal := _image(image, now, (older_than, unused_for), holds))
    ]
    return (*removals, *_logs(directory, now))


def _image(
    image: Path, now: float, ages: tuple[float | None, float | None], holds: Holds | None
) -> Removal | None:
    older_than, unused_for = ages
    age, idle = now - image.stat().st_mtime, now - usage.last_used(image)
    if (older_than is not None and age < older_than) or (
        unused_for is not None and idle < unused_for
    ):
        return None
    runs = usage.unfinished(image, holds)
    why = f"built {human_age(age)} ago, used {human_age(idle)} ago"
    return _removal(
        image.name.removesuffix(".sif"), files_of(image), why, f"used by {runs[0]}" if runs else ""
    )


def _logs(directory: Path, now: float) -> Iterator[Removal]:
    for log in sorted(directory.glob(f"*{FAILED_LOG}")):
        age = now - log.stat().st_mtime
        if age > _LOG_DAYS * _DAY:
            yield _removal(log.name, (log,), f"a build that failed {human_age(age)} ago")


def _removal(name: str, paths: tuple[Path, ...], why: str, reason_to_keep: str = "") -> Removal:
    return Removal(
        name=name,
        paths=tuple(map(str, paths)),
        size=sum(path.stat().st_size for path in paths),
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
        BusyError: a run that has not ended uses it.
    """
    runs = () if force else usage.unfinished(image, holds)
    if runs:
        raise BusyError(
            f"{image.name} is used by a run that has not ended, as far as is known",
            place=str(runs[0]),
            next_step="toolkit ps shows its state; --force removes the image all the same",
        )
    removal = _removal(image.name, files_of(image), "")
    # The manifest goes first: a SIF without one is another tool's image, but a manifest without a
    # SIF would be false.
    for path in sorted(map(Path, removal.paths), key=lambda path: path.suffix != ".json"):
        path.unlink(missing_ok=True)
    usage.forget(image)
    return removal.size
