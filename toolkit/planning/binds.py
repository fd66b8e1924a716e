"""The directories of the host that a job's container sees. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.plan import Bind
from toolkit.runtimes import DEFAULT

_MODES = ("ro", "rw", "squashfs")


def binds(case: Case) -> tuple[Bind, ...]:
    """Return the binds of a job: those of every run, the site's data sets, what the user names."""
    return (*_own(case), *_data(case), *case.binds)


def _own(case: Case) -> Iterator[Bind]:
    """Yield the working directory, the run's own, and that of the script; none within another."""
    target = case.target
    paths = [target.cwd, case.run, target.folder, *case.shown]
    if case.tree is not None:
        paths = [case.tree.cwd, case.run, *paths]
    if case.shown:
        paths.sort(key=lambda path: len(PurePosixPath(path).parts))
    outermost: list[str] = []
    for path in paths:
        if not any(PurePosixPath(path).is_relative_to(other) for other in outermost):
            outermost.append(path)
            yield Bind(source=path, target=path)


def _data(case: Case) -> Iterator[Bind]:
    taken = {bind.target for bind in case.binds}
    for name in case.job.datasets:
        if name in case.site.datasets and f"/data/{name}" not in taken:
            yield Bind(source=case.site.datasets[name], target=f"/data/{name}", read_only=True)


def findings(case: Case) -> Iterator[ToolkitError]:
    """Yield the errors of binds that a container cannot have.

    Apptainer's ``--bind`` separates by commas and colons and has no quoting.
    """
    places = {"working directory": _own(case), "datasets": _data(case), "--bind": case.binds}
    for place, shown in places.items():
        for path in dict.fromkeys(path for bind in shown for path in (bind.source, bind.target)):
            if wrong := next((character for character in ",:\n\\" if character in path), ""):
                yield UsageError(
                    f"a directory with {wrong!r} in its name cannot be bound into a container: "
                    f"{path!r}",
                    place=place,
                    next_step="rename it, or bind a directory above it",
                )
    if (case.job.runtime or DEFAULT) != DEFAULT and any(bind.squashfs for bind in case.binds):
        yield UsageError(
            f"the runtime {case.job.runtime} cannot mount a squashfs",
            place="--bind",
            next_step="--runtime apptainer, or unpack it: unsquashfs -d DIRECTORY FILE",
        )


def parse_binds(
    texts: Iterable[str], directory: str
) -> tuple[tuple[Bind, ...], list[ToolkitError]]:
    """Parse each ``SRC[:DST[:ro|rw|squashfs]]``; relative sources start at ``directory``.

    Returns:
        The binds, and an error for each text that has no such form.
    """
    parsed, wrong = list[Bind](), list[ToolkitError]()
    for text in texts:
        try:
            parsed.append(_parse(text, directory))
        except UsageError as error:
            wrong.append(error)
    return tuple(parsed), wrong


def _parse(text: str, directory: str) -> Bind:
    parts = text.split(":")
    if not parts[0] or len(parts) > 3 or (len(parts) == 3 and parts[2] not in _MODES):
        raise UsageError(
            f"{text!r} is not SRC:DST[:ro]",
            place="--bind",
            next_step="--bind /data/imagenet:/data:ro",
        )
    source = str(PurePosixPath(directory) / parts[0])
    target = parts[1] if len(parts) > 1 and parts[1] else posixpath.normpath(source)
    if not target.startswith("/") or ".." in PurePosixPath(target).parts:
        raise UsageError(
            f"the target of {text!r} must be an absolute path without ..",
            place="--bind",
            next_step=f"--bind {parts[0]}:{posixpath.normpath('/' + target.lstrip('/'))}",
        )
    return Bind(
        source=source,
        target=target,
        read_only=parts[2:] in (["ro"], ["squashfs"]),
        squashfs=parts[2:] == ["squashfs"],
    )
