"""docker: Docker or podman on one machine. Each task is a container in the node's network, as the user, and gone with its task."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.model.environment import Engine
from toolkit.model.plan import Container
from toolkit.runtimes import Asked, common

_WHY = "an engine knows nothing of other nodes, nor of what Slurm gave the job there"
# What the engine's own client would read out of its environment in the place of the rank.
_CLIENTS = ("DOCKER_", "CONTAINER_", "CONTAINERS_")


def check(asked: Asked) -> Sequence[ToolkitError]:
    """One node, GPUs that the engine can give, and no variable that its client stumbles over."""
    findings = [
        *common.one_node(asked, "docker", _WHY),
        *common.no_environment(asked, "docker"),
        *common.unsigned(asked, "docker"),
    ]
    if asked.job.pty:
        findings.append(
            UsageError(
                "ranks in docker have no terminal",
                place="--pty",
                next_step="leave it out, or --runtime apptainer",
            )
        )
    engine = asked.engine
    if (
        engine
        and asked.job.most_gpus
        and not engine.nvidia
        and asked.site.access != "local-cluster"
    ):
        findings.append(
            LauncherMismatchError(
                f"{engine.program} here gives containers no GPUs",
                place="--gpus",
                next_step="install NVIDIA's container toolkit, or --runtime apptainer",
            )
        )
    findings += [
        UsageError(
            f"{name} would be read by {engine.program if engine else 'docker'} itself",
            place="--env",
            next_step="leave it out",
        )
        for name in asked.job.env
        if name == "HOME" or name.startswith(_CLIENTS)
    ]
    return findings


def container(asked: Asked) -> Container:
    """The image by its reference, started by the engine's client, as the user who owns the files."""
    engine = asked.engine
    program = engine.program if engine else "docker"
    keeps_user = (
        ("--userns", "keep-id", *_groups(engine)) if program == "podman" else ("--user", "0:0")
    )
    return Container(
        runtime="docker",
        command=program,
        image=asked.image,
        name=asked.image,
        where=f"in {asked.image} by {program}",
        prefix=common.PREFIX,
        binds=asked.binds,
        gpus=bool(asked.job.most_gpus and engine and engine.nvidia),
        options=keeps_user if engine and engine.rootless else (),
        settings={f"{'CONTAINER' if program == 'podman' else 'DOCKER'}_HOST": engine.address}
        if engine and engine.address
        else {},
        **common.home(asked.image, asked.site.scratch),
    )


def _groups(engine: Engine | None) -> tuple[str, ...]:
    """All of the user's groups go along, but not through a socket: podman refuses that."""
    return () if engine and engine.address else ("--group-add", "keep-groups")


def warnings(asked: Asked) -> tuple[str, ...]:
    """Frameworks that are not in the image, and groups that do not go along."""
    engine = asked.engine
    alone = engine and engine.program == "podman" and engine.rootless and not _groups(engine)
    lacks = (
        (
            "ranks have your first group only: podman takes no others along through the socket that DOCKER_HOST names",
        )
        if alone
        else ()
    )
    return (*common.unheld(asked, asked.image), *lacks)
