"""Copy an image and its files into a directory of this machine, or of another one by ssh.

No file gets its own name before all of them have arrived and are equal to what was sent.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import (
    NO_SPACE,
    CommandFailedError,
    ForbiddenError,
    ImageMissingError,
    NoSpaceError,
    ToolkitError,
    UsageError,
)
from toolkit.files import hash_file
from toolkit.images.store.prune import FAILED_LOG, files_of
from toolkit.images.store.store import StoredImage
from toolkit.progress import Progress
from toolkit.quoting import shell as quoted
from toolkit.units import human_size

_PATIENCE = 6 * 3600.0  # seconds


def copy(image: StoredImage, target: str, progress: Progress, *, mode: int = 0o644) -> str:
    """Copy an image and its files into a directory of this machine, or of another by ssh.

    All files arrive under names that begin with a dot, are compared with the originals, and only
    then get their own names. If that fails or is interrupted, none of them is left.

    Args:
        image: the image to copy.
        target: a directory, or ``host:directory``.
        progress: shows the steps.
        mode: the permissions of the files there.

    Raises:
        CommandFailedError: the machine does not answer, or what arrived differs from what was sent.
        ImageMissingError: the directory does not exist.
    """
    host, colon, directory = target.partition(":")
    remote = bool(colon) and "/" not in host
    place = _RemoteDirectory(host, directory or ".") if remote else _LocalDirectory(Path(target))
    names = {
        path: _temporary(path, image)
        for path in files_of(Path(image.path))
        if not path.name.startswith(".") and not path.name.endswith((".log", FAILED_LOG))
    }
    try:
        for path, name in names.items():
            progress.begin("copy", f"{path.name}, {human_size(path.stat().st_size)}")
            place.send(path, name, mode)
            progress.end()
        # The SIF is first: until the manifest has its own name, readers find it by the SIF's id.
        place.name({name: path.name for path, name in names.items()})
    except BaseException:
        place.discard(tuple(names.values()))
        raise
    return f"{target.rstrip('/')}/{Path(image.path).name}"


def _temporary(path: Path, image: StoredImage) -> str:
    """Return the name that a file has while it arrives; that of a manifest holds the SIF's id."""
    name = Path(image.path).name.removesuffix(".sif")
    if image.manifest and path.name == f"{name}.json":
        return f".{name}.{image.manifest.sif_id}.json"
    return f".{path.name}.{secrets.token_hex(4)}"


@dataclass(frozen=True)
class _LocalDirectory:
    """A directory of this machine."""

    directory: Path

    def send(self, path: Path, name: str, mode: int) -> None:
        """Copy a file; errors as of ``copy``."""
        if not self.directory.is_dir():
            reason = f"the directory {self.directory} does not exist"
            raise ImageMissingError(
                reason, place=str(self.directory), next_step=f"mkdir -p {self.directory}"
            )
        temporary = self.directory / name
        try:
            shutil.copyfile(path, temporary)
        except OSError as error:
            raise _not_copied(path, temporary, error) from None
        if hash_file(temporary) != hash_file(path):
            raise CommandFailedError(f"what arrived as {temporary} differs from what was sent")
        temporary.chmod(mode)

    def name(self, names: Mapping[str, str]) -> None:
        """Rename the files."""
        for temporary, name in names.items():
            (self.directory / temporary).replace(self.directory / name)

    def discard(self, names: Sequence[str]) -> None:
        """Remove the files."""
        for name in names:
            with suppress(OSError):
                (self.directory / name).unlink(missing_ok=True)


def _not_copied(path: Path, target: Path, error: OSError) -> ToolkitError:
    """Return the error for a file that could not be copied into a directory of this machine."""
    reason = f"{path.name} cannot be written: {error.strerror or error}"
    if error.errno in NO_SPACE:
        return NoSpaceError(reason, place=str(target.parent))
    return ForbiddenError(reason, place=str(target.parent))


@dataclass(frozen=True)
class _RemoteDirectory:
    """A directory of another machine, by ssh."""

    host: str
    directory: str

    def __post_init__(self) -> None:
        if self.host.startswith("-"):
            raise UsageError(f"{self.host!r} is not a host name", place="TO")

    def _path(self, name: str) -> str:
        return f"{self.directory.rstrip('/')}/{name}"

    def _shell(self, script: str, patience: float = 3600) -> shell.Result:
        return shell.run(
            ["ssh", "-o", "BatchMode=yes", self.host, script], check=False, timeout=patience
        )

    def send(self, path: Path, name: str, mode: int) -> None:
        """Send a file; errors as of ``copy``."""
        there = f"{self.host}:{self._path(name)}"
        if shell.which("rsync"):
            # --protect-args: the remote shell does not interpret the name. --inplace: there is no
            # second file of another name, which an interruption would leave.
            ssh = "ssh -o BatchMode=yes"
            words = ["rsync", "--inplace", "--protect-args", "-e", ssh, "--", str(path), there]
        else:
            words = ["scp", "-q", "-o", "BatchMode=yes", "--", str(path), there]
        sent = shell.run(words, check=False, timeout=_PATIENCE)
        if not sent.ok:
            raise self._failed(f"{path.name} could not be sent to {self.host}", sent)
        temporary = quoted(self._path(name))
        compared = f"test \"$(sha256sum < {temporary} | cut -d' ' -f1)\" = {hash_file(path)}"
        arrived = self._shell(f"{compared} && chmod {mode:o} {temporary}")
        if not arrived.ok:
            raise self._failed(f"what arrived on {self.host} differs from what was sent", arrived)

    def name(self, names: Mapping[str, str]) -> None:
        """Rename the files, all of them in one command."""
        pairs = ((quoted(self._path(old)), quoted(self._path(new))) for old, new in names.items())
        done = self._shell(" && ".join(f"mv -f {old} {new}" for old, new in pairs))
        if not done.ok:
            raise self._failed(f"the files could not be named on {self.host}", done)

    def discard(self, names: Sequence[str]) -> None:
        """Remove the files, if the machine answers."""
        with suppress(ToolkitError):
            self._shell(
                "rm -f " + " ".join(quoted(self._path(name)) for name in names), patience=60
            )

    def _failed(self, reason: str, result: shell.Result) -> CommandFailedError:
        step = f"ssh {self.host} ls -a {quoted(self.directory)}"
        return CommandFailedError(
            reason, place=f"{self.host}:{self.directory}", details=result.tail(), next_step=step
        )
