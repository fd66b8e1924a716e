"""Which engine builds, where nobody has chosen: Apptainer in the first way that it may, else Docker, else what to ask for."""

from __future__ import annotations

from typing import Literal

from toolkit.errors import ForbiddenError, NeedsInstallError, ToolkitError
from toolkit.images.build.docker import docker
from toolkit.images.build.privilege import build_command
from toolkit.progress import Progress
from toolkit.runtimes.discover import docker_engine


def choose_engine(
    wish: Literal["auto", "apptainer", "docker"], progress: Progress
) -> Literal["apptainer", "docker"]:
    """The engine for this machine and user.

    Args:
        wish: ``auto`` where nobody has chosen.
        progress: is told where it is not the usual one.

    Raises:
        ForbiddenError, NeedsInstallError: neither can build here; says what is in the way of each.
    """
    if wish != "auto":
        return wish
    try:
        build_command()
    except (ForbiddenError, NeedsInstallError) as error:
        _or_docker(error, progress)
        return "docker"
    return "apptainer"


def _or_docker(refused: ToolkitError, progress: Progress) -> None:
    """Docker can, or the reasons of both are told."""
    try:
        found = docker_engine.find_engine()
        docker.find_client(found)
    except ToolkitError as error:
        reasons = (
            f"Apptainer: {refused.cause}",
            *refused.details,
            f"Docker: {error.cause}",
            *error.details,
        )
        raise type(refused)(
            "no image can be built here", details=reasons, next_step=refused.next_step
        ) from None
    progress.say("engine", f"{found}, since {refused.cause}")
