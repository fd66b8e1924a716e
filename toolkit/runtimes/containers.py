"""Runtimes of images: Apptainer, Docker and podman, and Pyxis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.errors import (
    ImageMissingError,
    LauncherMismatchError,
    NeedsInstallError,
    ShapeError,
    ToolkitError,
    UsageError,
)
from toolkit.model.case import Case, Image
from toolkit.model.image import Engine
from toolkit.model.run import Container
from toolkit.runtimes.base import Runtime, binds


def _directories(case: Case, name: str) -> dict[str, Any]:
    """Return what an image sees of the host: its home, on the site's scratch if any, and binds.

    The home's name has no characters that a container's options interpret.
    """
    safe, scratch = re.sub(r"[^\w.+-]", "-", name, flags=re.ASCII), case.site.scratch
    home = f"{scratch.rstrip('/')}/toolkit/home/{safe}" if scratch else None
    return {"home": home, "home_name": safe, "binds": binds(case)}


def _check_apptainer(case: Case) -> Iterator[ToolkitError]:
    if not case.facts.container:
        yield NeedsInstallError(
            f"neither {' or '.join(case.site.containers)} is on PATH",
            place="container",
            next_step="toolkit setup, or load its module",
        )
    if case.job.stage_image and not case.image.version:
        yield UsageError(
            "the image's file is not known here: every node reads it where it is",
            place="--stage-image",
            next_step="plan the job where the image is, or leave it out",
            is_warning=True,
        )


def _apptainer(case: Case) -> Container:
    """Return how a rank enters an image.

    Our own images are entered by ``run``. It is not known what the runscript of a foreign one does
    (NGC's writes into the read-only image), so that one is entered by ``exec``.
    """
    manifest, file = case.manifest, PurePosixPath(case.image.path)
    command = case.facts.container or "apptainer"
    name = manifest.name if manifest else file.stem
    staged = ""
    if case.job.stage_image and case.image.version:
        directory = case.site.stage_directory.rstrip("/")
        staged = f"{directory}/toolkit-images-$UID/{case.image.version}.sif"
    has_runscript = manifest.runscript if manifest is not None else case.image.is_recipe
    return Container(
        command=command,
        action="run" if has_runscript else "exec",
        image=case.image.path,
        staged=staged,
        name=name,
        where=f"in {name}",
        prefix="APPTAINERENV_" if command == "apptainer" else "SINGULARITYENV_",
        gpus=bool(case.job.most_gpus),
        **_directories(case, name),
    )


# Apptainer, and Singularity, which has another name and the same options.
APPTAINER = Runtime(
    "apptainer",
    "Apptainer or Singularity, with a SIF",
    container=_apptainer,
    check=_check_apptainer,
    image="sif",
)

# The engine's own client would read variables of these names instead of giving them to the rank.
_CLIENTS = ("DOCKER_", "CONTAINER_", "CONTAINERS_")


def _discover_engine(case: Case) -> Case:
    from toolkit.runtimes.docker import discover

    engine, manifest = discover(case.image.path)
    return case._replace(image=case.image._replace(manifest=manifest), engine=engine)


def _check_docker(case: Case) -> Iterator[ToolkitError]:
    """Require one node, GPUs that the engine can give, and variables for the ranks alone."""
    job, engine = case.job, case.engine
    program = engine.program if engine else "docker"
    if case.nodes > 1:
        yield ShapeError(
            "docker runs on one node only: an engine does not know other nodes, "
            "nor what Slurm gave the job there",
            place="--nodes",
            next_step="--nodes 1, or --runtime apptainer "
            "(toolkit image build --engine docker gives a SIF)",
        )
    if job.pty:
        yield UsageError(
            "ranks in docker have no terminal",
            place="--pty",
            next_step="leave it out, or --runtime apptainer",
        )
    has_real_gpus = job.most_gpus and case.site.access != "local-cluster"
    if engine and has_real_gpus and not engine.nvidia:
        yield LauncherMismatchError(
            f"{program} here gives containers no GPUs",
            place="--gpus",
            next_step="install NVIDIA's container toolkit, or --runtime apptainer",
        )
    for name in job.env:
        if name == "HOME" or name.startswith(_CLIENTS):
            yield UsageError(
                f"{program} itself reads {name}, so that it cannot be set for the ranks",
                place="--env",
                next_step="leave it out",
            )


def _docker(case: Case) -> Container:
    """Return the image by its reference; the engine's client starts it as the user.

    Each task is a container in the node's network, and ends with its task.
    """
    engine, image = case.engine or Engine(program="docker"), case.image.path
    is_podman = engine.program == "podman"
    # podman keeps all of the user's groups, but refuses that by a socket.
    groups = () if engine.address else ("--group-add", "keep-groups")
    as_user = ("--userns", "keep-id", *groups) if is_podman else ("--user", "0:0")
    host = "CONTAINER_HOST" if is_podman else "DOCKER_HOST"
    return Container(
        runtime="docker",
        command=engine.program,
        image=image,
        name=image,
        where=f"in {image} by {engine.program}",
        prefix="TOOLKITENV_",
        gpus=bool(case.job.most_gpus and engine.nvidia),
        options=as_user if engine.rootless else (),
        settings={host: engine.address} if engine.address else {},
        **_directories(case, image),
    )


DOCKER = Runtime(
    "docker",
    "Docker or podman, on one node, with an image of that engine",
    container=_docker,
    check=_check_docker,
    discover=_discover_engine,
    image="docker",
    offers=frozenset(),
    interface="lo",
)


def _discover_pyxis(case: Case) -> Case:
    """Require the plugin, which only `srun --help` shows, and the image.

    Returns:
        The case with the image as the nodes find it: its reference, or the absolute path of its
        file.
    """
    image = case.image.path
    if case.cluster is None:
        return case
    if "--container-image" not in case.cluster.ask("srun", "--help").stdout:
        raise LauncherMismatchError(
            "srun here knows no --container-image: Slurm has no plugin Pyxis",
            place="--runtime pyxis",
            next_step="--runtime apptainer; or ask the administrator for Pyxis "
            "(https://github.com/NVIDIA/pyxis)",
        )
    if case.image.is_recipe or image.endswith(".sif"):
        raise ImageMissingError(
            f"{image} is a SIF, and Pyxis starts images of registries and squashfs files of enroot",
            place="--image",
            next_step="--runtime apptainer, or --image REGISTRY/NAME:TAG",
        )
    if not image.startswith(("/", "./", "../", "~/")):
        return case
    path = Path(image).expanduser().absolute()
    if not path.is_file():
        raise ImageMissingError(
            f"there is no file {path}",
            place="--image",
            next_step="enroot import docker://REGISTRY#NAME:TAG makes one",
        )
    return case._replace(image=Image(str(path), is_here=True))


def _pyxis(case: Case) -> Container:
    """Return the image by its address, in the spelling of enroot."""
    return Container(
        runtime="pyxis",
        image=enroot(case.image.path),
        name=case.image.path,
        where=f"in {case.image.path} by pyxis",
        inherits=True,
        gpus=bool(case.job.most_gpus),
        **_directories(case, case.image.path),
    )


def enroot(image: str) -> str:
    """Return ``nvcr.io/nvidia/pytorch:25.06-py3`` as ``nvcr.io#nvidia/pytorch:25.06-py3``.

    enroot looks for any other spelling on Docker Hub. Paths of files, and what is spelled so
    already, stay as they are.
    """
    image = image.removeprefix("docker://")
    first, slash, rest = image.partition("/")
    if image.startswith(("/", ".", "~")) or "#" in image or not slash:
        return image
    return f"{first}#{rest}" if "." in first or ":" in first or first == "localhost" else image


# NVIDIA's plugin for Slurm: options that it adds to srun start tasks in containers of enroot.
PYXIS = Runtime(
    "pyxis",
    "Slurm's own plugin Pyxis, with an image of a registry or a squashfs file of enroot",
    container=_pyxis,
    discover=_discover_pyxis,
    image="enroot",
    offers=frozenset(("nodes", "pmi", "terminal")),
)
