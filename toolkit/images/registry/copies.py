"""Copy an image into a directory of this machine, or of another one by ssh.

The copy arrives in a directory of its own there, is compared with what was sent, and gets its name
under the image's lock of that directory. The next build or `image prune` there removes what a
killed copy left.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import IO

from toolkit import shell
from toolkit.errors import CommandFailedError, ImageMissingError, UsageError
from toolkit.files import hash_file, open_regular
from toolkit.images.host.mutex import hold_image, lock_path
from toolkit.images.host.workspace import MARKER, PREFIX, workspace
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.quoting import shell as quoted
from toolkit.quoting import shell_words
from toolkit.shell import Progress
from toolkit.units import human_size

_PATIENCE = 6 * 3600.0  # seconds
# Reads the image from its input. The marker is that of a build, so that a build or a prune there
# removes in the end what is left if that machine is switched off.
_RECEIVE = """\
scratch={scratch}
mkdir -m 700 "$scratch" || exit
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
touch "$scratch/{marker}" && cat > "$scratch/sif" || exit
test "$(sha256sum < "$scratch/sif" | cut -d' ' -f1)" = {digest} ||
    {{ echo 'what arrived differs from what was sent' >&2; exit 1; }}
chmod {mode:o} "$scratch/sif" && exec 9>> {lock} && flock -w 3000 9 &&
    mv -f -- "$scratch/sif" {target} && {forget}
"""


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
        _send(Path(image.path), host, directory or ".", progress, mode)
    else:
        _copy_here(Path(image.path), Path(target), progress, mode)
    return f"{target.rstrip('/')}/{Path(image.path).name}"


def _copy_here(path: Path, directory: Path, progress: Progress, mode: int) -> None:
    if not directory.is_dir():
        reason = f"the directory {directory} does not exist"
        raise ImageMissingError(reason, place=str(directory), next_step=f"mkdir -p {directory}")
    target = directory / path.name
    with workspace(directory) as place, open_regular(path) as stream:
        source = _opened(stream)
        progress.begin("copy", f"{path.name}, {human_size(source.stat().st_size)}")
        try:
            shutil.copyfile(source, place.sif)
        except OSError as error:
            error.filename = str(directory)  # where room is needed, not what is read
            raise
        if hash_file(place.sif) != hash_file(source):
            raise CommandFailedError(f"what arrived as {place.sif} differs from what was sent")
        progress.end()
        place.sif.chmod(mode)
        with hold_image(target, "copied", wait=progress):
            store.publish(place.sif, directory, path.name.removesuffix(".sif"))


def _opened(stream: IO[bytes]) -> Path:
    """Return a path of an open file, which a build may replace under its name."""
    return Path(f"/proc/self/fd/{stream.fileno()}")


def _send(path: Path, host: str, directory: str, progress: Progress, mode: int) -> None:
    """Copy an image by ssh: one command there receives, compares and names it.

    If the connection breaks, its input ends, and what arrived is not what was sent.
    """
    if host.startswith("-"):
        raise UsageError(f"{host!r} is not a host name", place="TO")
    target = Path(directory) / path.name
    _, note, _ = store.paths_of(target)
    with open_regular(path) as stream:
        source = _opened(stream)
        progress.begin("copy", f"{path.name}, {human_size(source.stat().st_size)}")
        script = _RECEIVE.format(
            scratch=quoted(str(target.with_name(f"{PREFIX}{secrets.token_hex(4)}"))),
            marker=MARKER,
            digest=hash_file(source),
            mode=mode,
            lock=quoted(str(lock_path(target))),
            target=quoted(str(target)),
            forget=shell_words(["rm", "-f", "--", str(note)]),
        )
        words = ["ssh", "-o", "BatchMode=yes", host, script]
        done = shell.run(words, stdin=stream.fileno(), check=False, timeout=_PATIENCE)
        if not done.ok:
            raise CommandFailedError(
                f"{path.name} could not be sent to {host}",
                place=f"{host}:{directory}",
                details=done.tail(),
                next_step=f"ssh {host} ls -a {quoted(directory)}",
            )
        progress.end()
