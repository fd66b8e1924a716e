"""The directories of one build: private, on disks with room, and gone afterwards, also those that a build left that was killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import NoSpaceError
from toolkit.images.build import ownership
from toolkit.images.build.ownership import Owner
from toolkit.images.build.remove import remove
from toolkit.images.store.space import look, warnings
from toolkit.model.recipe import Space
from toolkit.units import human_size

TMP_VARIABLE = "TOOLKIT_BUILD_TMP"
_PREFIX = ".toolkit-build-"
_UNFINISHED = ".toolkit-making-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MEGABYTE = 10**6


@dataclass(frozen=True)
class Workspace:
    """Where a build works.

    Attributes:
        output: on the file system of the images, so that the result can be renamed into place.
        scratch: where Apptainer unpacks; ``$TOOLKIT_BUILD_TMP``, or beside ``output``.
        locks: file descriptors that say that the build is alive; a process that outlives us keeps them open.
    """

    output: Path
    scratch: Path
    locks: tuple[int, ...]

    @property
    def sif(self) -> Path:
        return self.output / "image.sif"

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.output, self.scratch)))


def scratch_parent(images: Path) -> Path:
    """The directory that builds unpack in: ``$TOOLKIT_BUILD_TMP``, else that of the images; never ``$HOME/.apptainer`` or ``/tmp``."""
    chosen = os.environ.get(TMP_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else images


def require_space(images: Path, space: Space, *, twice: bool = False) -> tuple[str, ...]:
    """Refuse to begin what would fill a disk or a quota; what people should know although it may work.

    Args:
        twice: a build in layers keeps what the image is put together from.

    Raises:
        NoSpaceError: a file system has less than the recipe needs.
    """
    needs: dict[int, tuple[Path, int]] = {}
    for directory, megabytes in (
        (images, space.image * (2 if twice else 1)),
        (scratch_parent(images), space.build),
    ):
        device = directory.stat().st_dev
        needs[device] = (directory, needs.get(device, (directory, 0))[1] + megabytes)
    known: list[str] = []
    for directory, megabytes in needs.values():
        room = look(directory)
        if room.available < megabytes * _MEGABYTE:
            whose = "are left of your quota" if room.available < room.free else "are free"
            raise NoSpaceError(
                f"the build needs {human_size(megabytes * _MEGABYTE)} in {directory}; {human_size(room.available)} {whose}",
                place=str(directory),
                next_step=f"make room, or set TOOLKIT_IMAGES or {TMP_VARIABLE} to directories on another disk",
            )
        known += warnings(room, megabytes * _MEGABYTE)
    return tuple(known)


def sweep(images: Path) -> None:
    """Remove what dead builds of this store left."""
    owner = ownership.this_process(images)
    for parent in dict.fromkeys((images, scratch_parent(images))):
        _remove_abandoned(parent, owner)


@contextmanager
def workspace(images: Path) -> Iterator[Workspace]:
    """Directories for one build, removed at the end; removes those of dead builds first."""
    sweep(images)
    owner, made, locks = ownership.this_process(images), {}, []
    try:
        for parent in dict.fromkeys((images, scratch_parent(images))):
            made[parent], lock = _made(parent, owner)
            locks.append(lock)
        yield Workspace(
            output=made[images],
            scratch=made[scratch_parent(images)],
            locks=tuple(locks),
        )
    finally:
        for directory in made.values():
            remove(directory)
        for lock in locks:
            os.close(lock)


def _made(parent: Path, owner: Owner) -> tuple[Path, int]:
    """Make a directory that is marked and locked before it gets a name that others look for."""
    new = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent))
    lock = os.open(new, _DIRECTORY)
    try:
        with suppress(
            OSError,
        ):  # a file system without locks: the marker says that the build is alive
            fcntl.flock(lock, fcntl.LOCK_EX)
        ownership.write(new, owner)
        return new.rename(new.with_name(new.name.replace(_UNFINISHED, _PREFIX, 1))), lock
    except BaseException:
        os.close(lock)
        remove(new)
        raise


def _remove_abandoned(parent: Path, reader: Owner) -> None:
    for directory in (*parent.glob(f"{_PREFIX}*"), *parent.glob(f"{_UNFINISHED}*")):
        try:
            lock = os.open(directory, _DIRECTORY)
        except OSError:
            continue  # of another user, a symbolic link, or gone
        try:
            if _is_free(lock) and _is_abandoned(directory, lock, reader):
                remove(directory)
        finally:
            os.close(lock)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here: only the marker tells
        return True
    return True


def _is_abandoned(directory: Path, handle: int, reader: Owner) -> bool:
    status = os.fstat(handle)
    if status.st_uid != os.geteuid():
        return False
    owner = ownership.read(directory)
    return ownership.is_abandoned(
        owner,
        reader,
        lives=ownership.lives(owner),
        age=time.time() - status.st_mtime,
    )
