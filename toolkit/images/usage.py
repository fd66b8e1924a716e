"""Which images are used: `toolkit run` leaves a note of each run beside the image, and nobody removes an image below a run.

The notes are in ``.used/<image>/``, one small file for each run, named after nothing that a second user could guess or needs to write: a
directory of images that several people share is only read by most of them, and what they use is then not known here.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from toolkit.files import read_text

_DIRECTORY = ".used"
_LONGEST = 1 << 16  # bytes of a note, which is a path
_FINISHED = 3600.0  # seconds after which a run that left no trace of its end, and whose directory is gone, is forgotten


def note(image: Path, run: Path) -> None:
    """Remember that a run uses an image; silently nothing where the image's directory is another's."""
    directory = image.parent / _DIRECTORY / image.name.removesuffix(".sif")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(str(run).encode()).hexdigest()[:16]
        (directory / name).write_text(str(run), encoding="utf-8")
    except OSError:
        return


def last_used(image: Path) -> float:
    """When an image was last used, in seconds since 1970: by a run, or when it was built."""
    times = [path.stat().st_mtime for path in _notes(image)]
    return max((*times, image.stat().st_mtime))


def unfinished(image: Path) -> tuple[Path, ...]:
    """Runs of an image that have not ended, as far as their directories tell; those that have are forgotten."""
    found: list[Path] = []
    for path in _notes(image):
        if path.name == "ended":
            continue
        try:
            run = Path(read_text(path, _LONGEST))
        except (OSError, UnicodeDecodeError):  # no note of ours
            continue
        if (run / "outcome.json").exists() or (not run.exists() and time.time() - path.stat().st_mtime > _FINISHED):
            _keep_time_only(path)
        elif (run / "run.json").exists() or not run.exists():
            found.append(run)
    return tuple(sorted(found))


def forget(image: Path) -> None:
    """An image goes, and so do its notes."""
    for path in (image.parent / _DIRECTORY / image.name.removesuffix(".sif")).glob("*"):
        path.unlink(missing_ok=True)


def _notes(image: Path) -> list[Path]:
    return sorted((image.parent / _DIRECTORY / image.name.removesuffix(".sif")).glob("*"))


def _keep_time_only(path: Path) -> None:
    """The time of the last use is all that is needed of a run that has ended: one file for all of them."""
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
