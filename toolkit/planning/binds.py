"""The directories of the host that a job's container sees. Pure."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath

from toolkit.errors import UsageError
from toolkit.model.plan import Bind
from toolkit.planning.inputs import Inputs
from toolkit.runtimes import DEFAULT

_MODES = ("ro", "rw", "squashfs")


def binds(inputs: Inputs) -> tuple[Bind, ...]:
    """Return the binds of a job; none lies within another.

    They are the working directory, the run's own directory, that of the script, the site's data
    sets, and what the user names.

    Raises:
        UsageError: a path cannot be bound.
    """
    paths = [
        inputs.directory,
        inputs.run_directory,
        inputs.folder,
        *(directory.path for directory in inputs.shown),
    ]
    if inputs.tree is not None:
        paths = [inputs.tree.cwd, inputs.run_directory, *paths]
    if inputs.shown:
        paths.sort(key=lambda path: len(PurePosixPath(path).parts))
    outermost: list[str] = []
    for path in paths:
        if not any(PurePosixPath(path).is_relative_to(other) for other in outermost):
            outermost.append(path)
    own = [checked_bind(Bind(source=path, target=path), "working directory") for path in outermost]
    named = tuple(parse_bind(text, inputs.directory) for text in inputs.job.bind)
    if (inputs.job.runtime or DEFAULT) != DEFAULT and any(bind.squashfs for bind in named):
        raise UsageError(
            f"the runtime {inputs.job.runtime} cannot mount a squashfs",
            place="--bind",
            next_step="--runtime apptainer, or unpack it: unsquashfs -d DIRECTORY FILE",
        )
    taken = {bind.target for bind in named}
    data = (
        checked_bind(
            Bind(source=inputs.site.datasets[name], target=f"/data/{name}", read_only=True),
            "datasets",
        )
        for name in inputs.job.datasets
        if name in inputs.site.datasets and f"/data/{name}" not in taken
    )
    return (*own, *data, *named)


def parse_bind(text: str, directory: str) -> Bind:
    """Parse ``SRC[:DST[:ro|rw|squashfs]]``; relative sources start at ``directory``.

    Raises:
        UsageError: the text has no such form, or holds a character that Apptainer cannot carry.
    """
    parts = text.split(":")
    if not parts[0] or len(parts) > 3 or (len(parts) == 3 and parts[2] not in _MODES):
        raise UsageError(
            f"{text!r} is not SRC:DST[:ro]",
            place="--bind",
            next_step="--bind /data/imagenet:/data:ro",
        )
    source = str(PurePosixPath(directory) / parts[0])
    target = parts[1] if len(parts) > 1 and parts[1] else posixpath.normpath(source)
    container_path = posixpath.normpath("/" + target.lstrip("/"))
    if not target.startswith("/") or ".." in PurePosixPath(target).parts:
        raise UsageError(
            f"the target of {text!r} must be an absolute path without ..",
            place="--bind",
            next_step=f"--bind {parts[0]}:{container_path}",
        )
    bind = Bind(
        source=source,
        target=target,
        read_only=parts[2:] in (["ro"], ["squashfs"]),
        squashfs=parts[2:] == ["squashfs"],
    )
    return checked_bind(bind, "--bind")


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
