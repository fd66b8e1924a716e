"""none: no container. The ranks have the job's environment: the site's modules, and the Python that was found when the job was planned."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.model.environment import Environment
from toolkit.model.plan import Container
from toolkit.runtimes import Asked, common

# What an active environment is known by.
_VARIABLES = {"venv": "VIRTUAL_ENV", "conda": "CONDA_PREFIX"}


def check(asked: Asked) -> Sequence[ToolkitError]:
    """No image, no environment of conda; and torchrun, where that is to start the ranks."""
    return [
        *common.no_image(asked, "none"),
        *common.unsigned(asked, "none"),
        *common.no_environment(asked, "none"),
        *_torchrun(asked),
        *_path(asked),
    ]


def container(asked: Asked) -> Container:
    """An environment that is active is entered by its path, since a job may be submitted from a shell that knows nothing of it."""
    found = asked.environment
    entered = found is not None and found.kind in _VARIABLES
    name = found.name if found else "the nodes' Python"
    return Container(
        runtime="none",
        image=found.prefix if found and entered else "",
        name=name,
        where=f"without a container, by {name}",
        prefix=common.PREFIX,
        inherits=True,
        settings={_VARIABLES[found.kind]: found.prefix} if found and entered else {},
    )


def warnings(asked: Asked) -> tuple[str, ...]:
    """Frameworks that are not there, and data that has another path than in a container."""
    found = asked.environment
    return (*(common.unheld(asked, found.name) if found else ()), *data(asked))


def data(asked: Asked) -> tuple[str, ...]:
    """Where the site's data is, which the job's arguments may look for as ``/data/NAME``."""
    known = asked.site.datasets
    return tuple(
        f"/data/{name} is there in containers only; here the data is {known[name]}"
        for name in asked.job.datasets
        if name in known
    )


def _path(asked: Asked) -> list[ToolkitError]:
    found = asked.environment
    return common.on_path(found.prefix, "--runtime") if found and found.kind in _VARIABLES else []


def _torchrun(asked: Asked) -> list[ToolkitError]:
    return no_torchrun(asked.environment) if asked.job.launcher == "torchrun" else []


def no_torchrun(found: Environment | None) -> list[ToolkitError]:
    """A finding where there is no program torchrun: before torch 1.10, and where torch is missing."""
    if found is None or found.torchrun:
        return []
    return [
        LauncherMismatchError(
            f"there is no program torchrun in {found.name}",
            place="--launcher",
            next_step="--launcher srun does without it",
        )
    ]
