"""Notes on the use of images.

`toolkit run` leaves a note of each run beside the image, so that no image is removed while a run
uses it.

The notes are in ``.used/<image>/``, one small file for each run: a directory of images that several
people share is only read by most of them, and which images these use is then unknown. Those who can
write there may put anything in its place: no symbolic link is followed, and what a note says is
checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.files import read_text, write_atomically
from toolkit.images.recipe.digests import hash_bytes
from toolkit.model.run import CLUSTER_NAME

_DIRECTORY = ".used"
_LONGEST = 4095  # bytes of a note, which is a path


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

    Do nothing, silently, if this user cannot write to the image's directory.
    """
    text = "\0".join((str(use.run), str(use.job_id), use.cluster or ""))
    with suppress(OSError, ValueError):
        directory = _directory(image)
        directory.parent.mkdir(exist_ok=True)
        directory.mkdir(exist_ok=True)
        with _opened(image) as notes:
            write_atomically(notes / _name(use.run), text)


def _directory(image: Path) -> Path:
    return image.parent / _DIRECTORY / image.name.removesuffix(".sif")


@contextmanager
def _opened(image: Path) -> Iterator[Path]:
    """Open the directory of notes, through no symbolic link; yield a path to what was opened.

    Raises:
        OSError: there is none.
    """
    flags, directory = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, _directory(image)
    with ExitStack() as stack:
        above = os.open(directory.parent, flags | os.O_PATH)
        stack.callback(os.close, above)
        handle = os.open(directory.name, flags, dir_fd=above)
        stack.callback(os.close, handle)
        yield Path(f"/proc/self/fd/{handle}")


def _name(run: Path) -> str:
    return hash_bytes(os.fsencode(run))[:16]


def _read(file: Path) -> Use | None:
    try:
        text = read_text(file, _LONGEST, below=file.parent)
        run, job_id, cluster = text.split("\0")
        use = Use(Path(run), int(job_id), cluster or None)
    except (OSError, ValueError):
        return None
    is_note = use.run.is_absolute() and 0 <= use.job_id < 1 << 32
    return use if is_note and re.match(CLUSTER_NAME, use.cluster or "local") else None


def last_used(image: Path) -> float:
    """Return the time of an image's last use by a run, or of its build, in seconds since 1970."""
    times = [image.stat().st_mtime]
    with suppress(OSError), _opened(image) as notes:
        times.append(notes.stat().st_mtime)  # of the last note that was made
    return max(times)


def unfinished(image: Path, holds: Callable[[Use], bool]) -> tuple[Path, ...]:
    """Return the runs of an image that have not ended, and forget those that have.

    Args:
        image: the SIF.
        holds: asks Slurm whether a run that left no outcome still goes on.
    """
    runs, ended = list[Path](), list[Path]()
    with suppress(FileNotFoundError, NotADirectoryError), _opened(image) as notes:
        for path in sorted(notes.iterdir()):
            use = _read(path)
            if use is None:
                continue
            is_used = True  # of a run in a private directory, or of one that Slurm does not tell of
            with suppress(ToolkitError, OSError):
                is_used = not (use.run / "outcome.json").exists() and holds(use)
            if is_used:
                runs.append(use.run)
            else:
                ended.append(path)
        last = notes.stat().st_mtime_ns
        _remove(ended)
        if ended:  # another user's directory then counts as used now
            with suppress(OSError):
                os.utime(notes, ns=(last, last))
    return tuple(sorted(runs))


def forget(image: Path) -> None:
    """Remove the notes on an image that is being removed."""
    with suppress(FileNotFoundError, NotADirectoryError), _opened(image) as notes:
        _remove(notes.iterdir())


def _remove(notes: Iterable[Path]) -> None:
    for note in notes:
        with suppress(OSError):
            note.unlink()
