"""The directories of one build: private, on disks with space, and removed afterwards.

The directories of a killed build are removed by the next build. A build holds a lock (flock) on its
directories, and the kernel drops it with the last process of the build. If several machines share a
file system without shared locks, the lock says nothing about builds of the others: the name of a
directory has its host, and those of other hosts stay for a week.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError, NoSpaceError, ToolkitError
from toolkit.files import lock_new_directory
from toolkit.images.host.kernel import Bind, namespace_command
from toolkit.images.host.privilege import namespace_ids
from toolkit.images.recipe.recipe import Space
from toolkit.units import human_size

TMP_VARIABLE = "TOOLKIT_BUILD_TMP"
PREFIX = ".toolkit-build-"
MARKER = ".toolkit-workspace"  # tells that a build made the directory
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MEGABYTE = 10**6
_REMOVAL = 300  # seconds
_MAX_AGE = 7 * 86400.0  # seconds; no build takes so long


@dataclass(frozen=True)
class Workspace:
    """The directories of one build.

    Attributes:
        output: On the file system of the images, so that the result can be renamed into place.
        scratch: Where Apptainer unpacks; ``$TOOLKIT_BUILD_TMP``, or beside ``output``.
        locks: File descriptors that show that the build is alive; a process that outlives the tool
            keeps them open.
    """

    output: Path
    scratch: Path
    locks: tuple[int, ...]

    @property
    def sif(self) -> Path:
        """The file that the build writes."""
        return self.output / "image.sif"

    @property
    def images(self) -> Path:
        """The directory of the images."""
        return self.output.parent

    @property
    def directories(self) -> tuple[Path, ...]:
        """Both directories, or one if they are the same."""
        return tuple(dict.fromkeys((self.output, self.scratch)))

    def temporary_bind(self, target: str, prefix: str) -> Bind:
        """Make an empty directory that steps see as ``/tmp`` or the like; return its mount."""
        directory = self.scratch / f"{prefix}{target.replace('/', '-')}"
        directory.mkdir()
        directory.chmod(0o1777)
        return Bind(source=str(directory), target=target, writable=True)


def scratch_parent(images: Path) -> Path:
    """Return the directory to unpack in: ``$TOOLKIT_BUILD_TMP``, else that of the images.

    It is never ``$HOME/.apptainer`` or ``/tmp``.
    """
    directory = os.environ.get(TMP_VARIABLE)
    return Path(directory).expanduser().absolute() if directory else images


def make_directories(images: Path) -> None:
    """Make the directory of the images, and the one to unpack in.

    Raises:
        ForbiddenError: This user may not make them.
    """
    for directory in (images, scratch_parent(images)):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ForbiddenError(
                f"the directory {directory} cannot be made: {error.strerror}",
                next_step="set TOOLKIT_IMAGES to a directory of your own",
            ) from None


def require_space(images: Path, space: Space) -> None:
    """Refuse what would fill a disk.

    Args:
        images: The directory of the images.
        space: The space that is needed.

    Raises:
        NoSpaceError: A file system has less than the recipe needs.
    """
    needs: dict[int, tuple[Path, int]] = {}
    for directory, megabytes in (
        (images, space.image),
        (scratch_parent(images), space.build),
    ):
        device = directory.stat().st_dev
        needs[device] = (directory, needs.get(device, (directory, 0))[1] + megabytes)
    for directory, megabytes in needs.values():
        free, needed = shutil.disk_usage(directory).free, megabytes * _MEGABYTE
        if free < needed:
            raise NoSpaceError(
                f"the build needs {human_size(needed)} in {directory}; {human_size(free)} are free",
                place=str(directory),
                next_step="free some space, or set TOOLKIT_IMAGES or"
                f" {TMP_VARIABLE} to directories on another disk",
            )


def sweep(images: Path) -> None:
    """Remove the directories of dead builds of this store."""
    for parent in dict.fromkeys((images, scratch_parent(images))):
        for directory in parent.glob(f"{PREFIX}*"):
            _remove_abandoned(directory)


@contextmanager
def workspace(images: Path) -> Iterator[Workspace]:
    """Make the directories of one build, and remove them and those of dead builds.

    Transfers, signatures and packing use them as builds do.

    Raises:
        ForbiddenError: This user may not make them.
    """
    make_directories(images)
    sweep(images)
    made, locks = {}, []
    try:
        for parent in dict.fromkeys((images, scratch_parent(images))):
            made[parent], lock = _make(parent)
            locks.append(lock)
        yield Workspace(
            output=made[images], scratch=made[scratch_parent(images)], locks=tuple(locks)
        )
    finally:
        for directory in made.values():
            clear(directory)
        for lock in locks:
            os.close(lock)


def _make(parent: Path) -> tuple[Path, int]:
    """Make a directory that is locked and marked; another build may remove it before that."""
    lock = None
    while lock is None:
        new = Path(tempfile.mkdtemp(prefix=own_prefix(), dir=parent))
        lock = lock_new_directory(new)
    (new / MARKER).touch()
    return new, lock


def own_prefix() -> str:
    """Return how the names of this machine's directories begin."""
    return f"{PREFIX}{socket.gethostname()}-"


def _remove_abandoned(directory: Path) -> None:
    """Remove the directory of a dead build; one without a marker only if it is empty.

    Who can write to a shared directory of images can give this name to any directory there.
    """
    try:
        lock = os.open(directory, _DIRECTORY)
    except OSError:
        return  # it belongs to another user, is a symbolic link, or is gone
    try:
        status = os.fstat(lock)
        # Not what begins so: node1 is not node1-gpu. mkdtemp ends a name without a hyphen.
        is_here = f"{directory.name.rpartition('-')[0]}-" == own_prefix()
        is_old = time.time() - status.st_mtime > _MAX_AGE
        with suppress(OSError):  # a build has the lock, or the file system has none
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if status.st_uid != os.geteuid() or not (is_here or is_old):
                return
            if (directory / MARKER).exists():
                clear(directory)
            else:
                directory.rmdir()
    finally:
        os.close(lock)


def clear(directory: Path) -> None:
    """Remove a build's directory, its marker last: what is left without it is never removed."""
    with suppress(OSError):
        if remove(*(entry for entry in directory.iterdir() if entry.name != MARKER)):
            (directory / MARKER).unlink(missing_ok=True)
            directory.rmdir()


def remove(*paths: Path) -> bool:
    """Remove files, and directories with their contents; return whether all are gone.

    The files of a user's subordinate ids can only be removed in a namespace that has these ids.
    ``shutil.rmtree`` ends at some depth of directories, so ``rm`` does it.
    """
    words = ("rm", "-rf", "--", *(str(path.absolute()) for path in paths))
    with suppress(ToolkitError):
        shell.run(words, cwd="/", check=False, timeout=_REMOVAL)
        if os.getuid() != 0 and any(path.exists() for path in paths):
            # -m looks for modules in the current working directory first.
            command = (*namespace_command(namespace_ids()), *words)
            shell.run(command, cwd="/", check=False, timeout=_REMOVAL)
    return not any(path.exists() for path in paths)
