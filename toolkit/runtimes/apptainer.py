"""Apptainer, and Singularity, which is spelled differently and has the same options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from toolkit.errors import SlurmUnreachableError, ToolkitError, UsageError
from toolkit.model.plan import Bind, Container
from toolkit.runtimes import Asked, common


def check(asked: Asked) -> Sequence[ToolkitError]:
    """A command that starts containers must be known; an environment of conda means nothing."""
    findings = common.no_environment(asked, "apptainer")
    if not asked.facts.container:
        findings.append(
            SlurmUnreachableError(
                "no container command is known for this site", next_step="toolkit setup"
            )
        )
    return findings


def container(asked: Asked) -> Container:
    """How a rank enters an image.

    Our own images are entered by ``run``; of a foreign one nobody knows what its runscript does
    (NGC's writes into the read-only image), so it is entered by ``exec``.
    """
    command = asked.facts.container or "apptainer"
    name = asked.manifest.name if asked.manifest else PurePosixPath(asked.image).stem
    return Container(
        command=command,
        action="run"
        if (asked.manifest.runscript if asked.manifest is not None else asked.is_recipe)
        else "exec",
        image=asked.image,
        name=name,
        where=f"in {name}",
        prefix="APPTAINERENV_" if command == "apptainer" else "SINGULARITYENV_",
        binds=asked.binds,
        gpus=bool(asked.job.most_gpus),
        **common.home(name, asked.site.scratch),
    )


def warnings(asked: Asked) -> tuple[str, ...]:
    """Nothing that is not known already."""
    del asked
    return ()


def bind(text: str, directory: str) -> Bind:
    """``SRC[:DST[:ro|rw]]``, relative sources from ``directory``.

    Raises:
        UsageError: it has no such form, or holds a character that Apptainer's option cannot carry.
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
    return checked(Bind(source=source, target=target, read_only=parts[2:] == ["ro"]), "--bind")


def checked(bind: Bind, place: str) -> Bind:
    """``bind``, if Apptainer's ``--bind`` can carry it: it separates by commas and colons and has no quoting.

    Raises:
        UsageError: a path holds one of them, or a newline.
    """
    for path in (bind.source, bind.target):
        wrong = next((character for character in ",:\n\\" if character in path), None)
        if wrong:
            raise UsageError(
                f"a directory with {wrong!r} in its name cannot be bound into a container: {path!r}",
                place=place,
                next_step="rename it, or bind a directory above it",
            )
    return bind
