"""Read a run's files, which another user may have made, and write only into a run of the caller."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from toolkit.errors import ConfigError, ForbiddenError, ToolkitError, UnknownRunError
from toolkit.files import open_regular, read_json, write_atomically
from toolkit.model.base import AnyModel, to_json
from toolkit.trust import require_trusted

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


_LOG = re.compile(
    r"(?P<job>\d+)(?:_(?P<element>\d+))?(?:\.(?P<restart>\d+))?(?:-(?P<task>\d+)-(?P<host>.+))?\.log\Z"
)


@dataclass(frozen=True)
class Log:
    """One log of a job: of the batch shell (no host), or of one task.

    ``element`` is the number in a job array. A requeued job has logs of its tasks for each
    ``attempt``, from 1; its batch shell has one for all attempts.
    """

    path: Path
    job_id: int
    task: int | None
    host: str
    element: int | None = None
    attempt: int = 1

    @property
    def size(self) -> int:
        """The size in bytes; 0 if it has gone."""
        with suppress(OSError):
            return self.path.lstat().st_size
        return 0

    def open(self) -> BinaryIO:
        """Open the log, which may be anything that another user has put there.

        Raises:
            OSError: it is not a regular file in the run's own folder, or cannot be read.
        """
        return open_regular(self.path, below=self.path.parent.parent)


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run.

    Nothing below it is read or written through a symbolic link.
    """

    directory: Path

    @property
    def is_own(self) -> bool:
        """Return whether the run belongs to the caller, and no other user can exchange it."""
        with suppress(ToolkitError, OSError):
            self.require_own()
            return True
        return False

    def require_own(self) -> None:
        """Check that no other user wrote the run, or can exchange it while it is used.

        Raises:
            ForbiddenError: it belongs to another user, who may have written any number.
            UntrustedError: another user could exchange it.
            UnknownRunError: it has been removed.
        """
        try:
            owner = self.directory.stat().st_uid
        except OSError as error:
            cause = f"{self.directory.name} cannot be used: {error.strerror}"
            raise UnknownRunError(
                cause, place=str(self.directory), next_step="toolkit ps"
            ) from None
        if owner != os.geteuid():
            raise ForbiddenError(
                f"{self.directory.name} belongs to another user: only its owner ends it, "
                "removes it or asks its ranks",
                place=str(self.directory),
                next_step="see whose it is: ls -ld; a job of your own: scancel JOB",
            )
        require_trusted(self.directory)

    def read(self, path: Path, model: type[AnyModel]) -> AnyModel | None:
        """Read a JSON file of the run; return None if there is none.

        Raises:
            ConfigError: it is not a regular file, or does not fit the model.
        """
        try:
            return read_json(path, model, below=self.directory)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder of the run; none if there is no such folder.

        Raises:
            OSError: it cannot be read, or is a symbolic link.
        """
        try:
            handle = os.open(folder, _DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(handle)  # noqa: PTH208 - pathlib takes no descriptor
        finally:
            os.close(handle)

    def keep(self, path: Path, data: object) -> bool:
        """Write what was learned of a run after its end; return False if it cannot be kept.

        The next command learns it again: a disk that is full, or a run of another user, must not
        hide how a run came out.
        """
        with suppress(OSError):
            handle = os.open(self.directory, _DIRECTORY)
            try:
                if os.fstat(handle).st_uid != os.geteuid() or not self.is_own:
                    return False
                for folder in path.relative_to(self.directory).parts[:-1]:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=handle)
                    above = handle
                    handle = os.open(folder, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
                    os.close(above)
                # By the handle: no user can exchange the directory for another one meanwhile.
                place = Path(f"/proc/self/fd/{handle}", path.name)
                write_atomically(place, to_json(data, sort=False))  # in the script's order
                return True
            finally:
                os.close(handle)
        return False

    def logs_of(self, job_id: int) -> list[Log]:
        """Return the logs of a job: the batch shell's first, then by task.

        Raises:
            ConfigError: their folder is not one, or cannot be read.
        """
        folder = self.directory / "logs"
        try:
            names = self.names(folder)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be read: {error.strerror}",
                place=str(folder),
                next_step="see what it is: ls -ld",
            ) from None
        logs = []
        for path in (folder / name for name in names):
            match = _LOG.match(path.name)
            if match and int(match["job"]) == job_id:
                element = int(match["element"]) if match["element"] else None
                task, attempt = (
                    int(match["task"]) if match["task"] else None,
                    int(match["restart"] or 0) + 1,
                )
                logs.append(Log(path, job_id, task, match["host"] or "", element, attempt))
        return sorted(
            logs,
            key=lambda log: (log.element or 0, log.task is not None, log.attempt, log.task or 0),
        )
