"""Notes on the use of images.

`toolkit run` leaves a note of each run beside the image, so that no image is removed while a run
uses it.

The notes are in ``.used/<image>/``, one small file for each run, with a name that no other
user could guess or needs to write: a directory of images that several people share is only read by
most of them, and which images these use is then unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from toolkit.files import read_text
from toolkit.images.recipe.digests import hash_bytes

_DIRECTORY = ".used"
_LONGEST = 1 << 16  # bytes of a note, which is a path
# Seconds after which a run is forgotten that left no trace of its end and has no directory.
_FINISHED = 3600.0


class Use(NamedTuple):
    """A run that uses an image.

    Attributes:
        run: its directory, which may be gone by now.
        job_id: Slurm's number; 0: not known.
        cluster: name of the local cluster, if it runs on one.
    """

    run: Path
    job_id: int = 0
    cluster: str | None = None


def note(image: Path, use: Use) -> None:
    """Record that a run uses an image.

    Do nothing, silently, if the image's directory belongs to another user.
    """
    text = "\0".join((str(use.run), str(use.job_id), use.cluster or ""))
    try:
        file = _file(image, use.run)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError):
        return


def release(image: Path, run: Path) -> None:
    """Forget a run that was removed; the time of the last use is kept."""
    file = _file(image, run)
    if file.exists():
        _keep_time_only(file)


def _file(image: Path, run: Path) -> Path:
    directory = image.parent / _DIRECTORY / image.name.removesuffix(".sif")
    return directory / hash_bytes(os.fsencode(run))[:16]


def _read(file: Path) -> Use | None:
    """Read a note; older ones have the run's directory only."""
    try:
        run, job_id, cluster, *_ = (*read_text(file, _LONGEST).split("\0"), "0", "")
        return Use(Path(run), int(job_id), cluster or None)
    except (OSError, ValueError):  # it is not one of our notes
        return None


def last_used(image: Path) -> float:
    """Return the time of an image's last use by a run, or of its build, in seconds since 1970."""
    times = [path.stat().st_mtime for path in _notes(image)]
    return max((*times, image.stat().st_mtime))


def unfinished(image: Path, holds: Callable[[Use], bool] | None = None) -> tuple[Path, ...]:
    """Return the runs of an image that have not ended, and forget those that have.

    Args:
        image: the SIF.
        holds: asks Slurm whether a run that left no outcome still goes on. Without it, such a run
            is taken to go on, and one whose directory is gone for an hour.
    """
    runs: list[Path] = []
    for path in _notes(image):
        use = None if path.name == "ended" else _read(path)
        if use is None:
            continue
        if (use.run / "outcome.json").exists() or not (
            holds(use) if holds else _may_hold(use, path)
        ):
            _keep_time_only(path)
        else:
            runs.append(use.run)
    return tuple(sorted(runs))


def _may_hold(use: Use, note: Path) -> bool:
    return use.run.exists() or time.time() - note.stat().st_mtime <= _FINISHED


def forget(image: Path) -> None:
    """Remove the notes on an image that is being removed."""
    for path in (image.parent / _DIRECTORY / image.name.removesuffix(".sif")).glob("*"):
        path.unlink(missing_ok=True)


def _notes(image: Path) -> list[Path]:
    return sorted((image.parent / _DIRECTORY / image.name.removesuffix(".sif")).glob("*"))


def _keep_time_only(path: Path) -> None:
    """Replace the note on an ended run by the time of its last use.

    No more is needed of ended runs, so one file serves all of them.
    """
    last = path.with_name("ended")
    try:
        state = path.stat()
        if path != last:
            newer = max(state.st_mtime, last.stat().st_mtime if last.exists() else 0.0)
            last.touch()
            os.utime(last, (newer, newer))
            path.unlink()
    except OSError:
        return
