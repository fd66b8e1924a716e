"""Copy an image into a directory of this machine, or of another one by ssh.

All arrive in a directory of their own there, are compared with what was sent, and get their names
under the image's lock of that directory. The next build or `image prune` there removes what a
killed copy left.
"""

from __future__ import annotations

import secrets
import shutil
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
from toolkit.images.host.mutex import hold_for_reading, hold_image, lock_path
from toolkit.images.host.remove import MARKER
from toolkit.images.host.workspace import PREFIX, describe_process, workspace
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.model.base import to_json
from toolkit.quoting import shell as quoted
from toolkit.quoting import shell_words
from toolkit.shell import Progress
from toolkit.units import human_size

_PATIENCE = 6 * 3600.0  # seconds


def copy(image: StoredImage, target: str, progress: Progress, *, mode: int = 0o644) -> str:
    """Copy an image into a directory of this machine, or of another by ssh.

    If that fails or is interrupted, the directory has what it had before.

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
    if colon and "/" not in host:
        _Remote(host, directory or ".").copy(image, progress, mode)
    else:
        _copy_here(image, Path(target), progress, mode)
    return f"{target.rstrip('/')}/{Path(image.path).name}"


def _copy_here(image: StoredImage, directory: Path, progress: Progress, mode: int) -> None:
    if not directory.is_dir():
        reason = f"the directory {directory} does not exist"
        raise ImageMissingError(reason, place=str(directory), next_step=f"mkdir -p {directory}")
    path, target = Path(image.path), directory / Path(image.path).name
    with workspace(directory) as place:
        with hold_for_reading(path, "copied", progress):
            progress.begin("copy", f"{path.name}, {human_size(path.stat().st_size)}")
            try:
                shutil.copyfile(path, place.sif)
            except OSError as error:
                raise _not_copied(path, target, error) from None
            if hash_file(place.sif) != hash_file(path):
                raise CommandFailedError(f"what arrived as {place.sif} differs from what was sent")
            progress.end()
        place.sif.chmod(mode)
        with hold_image(target, "copied", wait=progress):
            store.publish(place.sif, directory, path.name.removesuffix(".sif"))


def _not_copied(path: Path, target: Path, error: OSError) -> ToolkitError:
    """Return the error for a file that could not be copied into a directory of this machine."""
    reason = f"{path.name} cannot be written: {error.strerror or error}"
    if error.errno in NO_SPACE:
        return NoSpaceError(reason, place=str(target.parent))
    return ForbiddenError(reason, place=str(target.parent))


@dataclass(frozen=True)
class _Remote:
    """A directory of another machine, by ssh."""

    host: str
    directory: str

    def __post_init__(self) -> None:
        if self.host.startswith("-"):
            raise UsageError(f"{self.host!r} is not a host name", place="TO")

    def _path(self, name: str) -> str:
        return f"{self.directory.rstrip('/')}/{name}"

    def _shell(self, script: str, patience: float = 3600, text: str = "") -> shell.Result:
        words = ["ssh", "-o", "BatchMode=yes", self.host, script]
        return shell.run(words, input=text, check=False, timeout=patience)

    def copy(self, image: StoredImage, progress: Progress, mode: int) -> None:
        """Copy an image; errors as of ``copy``."""
        path, scratch = Path(image.path), self._path(f"{PREFIX}{secrets.token_hex(4)}")
        try:
            # With the marker of a build, so that a build or a prune there removes it in the end.
            marker = to_json(describe_process(Path(self.directory)))
            self._write(f"{scratch}/{MARKER}", marker, f"mkdir -m 700 {quoted(scratch)}")
            with hold_for_reading(path, "copied", progress):
                progress.begin("copy", f"{path.name}, {human_size(path.stat().st_size)}")
                self._send(path, f"{scratch}/sif", mode)
            self._name(path, [(f"{scratch}/sif", self._path(path.name))])
            progress.end()
        finally:
            with suppress(ToolkitError):
                self._shell(f"rm -rf {quoted(scratch)}", patience=60)

    def _write(self, path: str, text: str, before: str) -> None:
        target = quoted(path)
        done = self._shell(f"{before} && cat > {target} && chmod 600 {target}", text=text)
        if not done.ok:
            raise self._failed(f"the files could not be written on {self.host}", done)

    def _send(self, path: Path, target: str, mode: int) -> None:
        there = f"{self.host}:{target}"
        if shell.which("rsync"):
            # --protect-args: the remote shell does not interpret the name. --inplace: there is no
            # second file of another name.
            ssh = "ssh -o BatchMode=yes"
            words = ["rsync", "--inplace", "--protect-args", "-e", ssh, "--", str(path), there]
        else:
            words = ["scp", "-q", "-o", "BatchMode=yes", "--", str(path), there]
        sent = shell.run(words, check=False, timeout=_PATIENCE)
        if not sent.ok:
            raise self._failed(f"{path.name} could not be sent to {self.host}", sent)
        compared = f"test \"$(sha256sum < {quoted(target)} | cut -d' ' -f1)\" = {hash_file(path)}"
        arrived = self._shell(f"{compared} && chmod {mode:o} {quoted(target)}")
        if not arrived.ok:
            raise self._failed(f"what arrived on {self.host} differs from what was sent", arrived)

    def _name(self, image: Path, moves: list[tuple[str, str]]) -> None:
        """Rename the files, all of them in one command, under the lock of the image there."""
        lock = quoted(self._path(lock_path(image).name))
        script = " && ".join(shell_words(["mv", "-f", old, new]) for old, new in moves)
        done = self._shell(f"exec 9>> {lock} && flock -w 3000 9 && {script}")
        if not done.ok:
            raise self._failed(f"the files could not be named on {self.host}", done)

    def _failed(self, reason: str, result: shell.Result) -> CommandFailedError:
        step = f"ssh {self.host} ls -a {quoted(self.directory)}"
        return CommandFailedError(
            reason, place=f"{self.host}:{self.directory}", details=result.tail(), next_step=step
        )
