"""The directories of one build: private, on disks with room, and gone afterwards, also those that a build left that was killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import NoSpaceError
from toolkit.images.builders.remove import remove
from toolkit.images.space import look, warnings
from toolkit.model.recipe import Space
from toolkit.units import human_size

TMP_VARIABLE = "TOOLKIT_BUILD_TMP"
_PREFIX = ".toolkit-build-"
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
    for directory, megabytes in ((images, space.image * (2 if twice else 1)), (scratch_parent(images), space.build)):
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
    """Remove what builds left that are dead."""
    with _only_one(images):
        for parent in dict.fromkeys((images, scratch_parent(images))):
            _remove_dead(parent)


@contextmanager
def workspace(images: Path) -> Iterator[Workspace]:
    """Directories for one build, removed at the end; removes those of dead builds first."""
    parents = tuple(dict.fromkeys((images, scratch_parent(images))))
    with _only_one(images):
        for parent in parents:
            _remove_dead(parent)
        made = {parent: Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)) for parent in parents}
        locks = tuple(_lock(directory) for directory in made.values())
    try:
        yield Workspace(output=made[images], scratch=made[scratch_parent(images)], locks=locks)
    finally:
        for directory in made.values():
            remove(directory)
        for lock in locks:
            os.close(lock)


@contextmanager
def _only_one(images: Path) -> Iterator[None]:
    """Between making a directory and locking it, nobody else may take it for a dead one."""
    handle = os.open(images / ".builds.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _lock(directory: Path) -> int:
    handle = os.open(directory, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _remove_dead(parent: Path) -> None:
    """A build holds a lock on its directory as long as any part of it lives."""
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(directory, os.O_RDONLY)
        except OSError:
            continue  # of another user, or gone
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(directory)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)
