"""Directories of the host that a container shows."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.errors import UsageError
from toolkit.model.plan import Bind


def parse_bind(text: str, directory: str) -> Bind:
    """Parse ``SRC[:DST[:ro|rw]]``; relative sources start at ``directory``.

    Raises:
        UsageError: the text has no such form, or holds a character that Apptainer cannot carry.
    """
    parts = text.split(":")
    if not parts[0] or len(parts) > 3 or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise UsageError(
            f"{text!r} is not SRC:DST[:ro]",
            place="--bind",
            next_step="--bind /data/imagenet:/data:ro",
        )
    source = str(PurePosixPath(directory) / parts[0])
    target = parts[1] if len(parts) > 1 and parts[1] else source
    if not target.startswith("/"):
        raise UsageError(
            f"the target of {text!r} must be an absolute path",
            place="--bind",
            next_step=f"--bind {parts[0]}:/{target}",
        )
    return checked_bind(Bind(source=source, target=target, read_only=parts[2:] == ["ro"]), "--bind")


def checked_bind(bind: Bind, place: str) -> Bind:
    """Return ``bind`` if Apptainer's ``--bind`` can carry it.

    That option separates by commas and colons and has no quoting.

    Raises:
        UsageError: a path holds one of them, or a newline.
    """
    for path in (bind.source, bind.target):
        wrong = next((character for character in ",:\n\\" if character in path), None)
        if wrong:
            raise UsageError(
                f"a directory with {wrong!r} in its name cannot be bound into a container: "
                f"{path!r}",
                place=place,
                next_step="rename it, or bind a directory above it",
            )
    return bind
