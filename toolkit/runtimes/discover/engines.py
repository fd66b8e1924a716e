"""The Docker engine or podman of this machine, and an image of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from toolkit import shell
from toolkit.errors import ForbiddenError, ImageMissingError, NeedsInstallError
from toolkit.images.build.docker.engine import Engine as Answering
from toolkit.images.build.docker.engine import find_engine
from toolkit.model.environment import Engine
from toolkit.model.image import Manifest, Python
from toolkit.resources import package_directory
from toolkit.runtimes.common import FRAMEWORKS

_CDI = ("/etc/cdi", "/var/run/cdi")  # where podman finds descriptions of GPUs
_ANSWER = 120.0  # seconds


def look(image: str) -> tuple[Engine, Manifest | None]:
    """The engine that answers here, and what the image can import.

    Raises:
        NeedsInstallError: no engine answers, or its client is missing.
        ForbiddenError: this user may not talk to it.
        ImageMissingError: it has no such image, with the nearest name.
    """
    try:
        found = find_engine()
    except (NeedsInstallError, ForbiddenError) as error:
        error.place = "--runtime docker"
        error.next_step = "start one (Debian: apt-get install docker.io), or set DOCKER_HOST, or --runtime apptainer"
        raise
    program = "podman" if found.is_podman else "docker"
    if shell.which(program) is None:
        raise NeedsInstallError(
            f"an engine answers at {found.address}, and its client {program} is not on PATH",
            place="--runtime docker",
        )
    _there(found, image, program)
    info = found.client.info()
    chosen = address_for_client(found)
    known = Engine(
        program=program,
        address=chosen,
        rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
        or _podman_rootless(info),
        nvidia="nvidia" in (info.get("Runtimes") or {})
        or (found.is_podman and any(Path(place).is_dir() for place in _CDI)),
    )
    return known, _contents(image, program, chosen)


def address_for_client(found: Answering) -> str:
    """What the client has to be told: Docker's finds by itself whatever answered here; podman's works for its own user, by no socket."""
    chosen = os.environ.get("DOCKER_HOST", "")
    return chosen if chosen or not found.is_podman or found.is_ours else found.address


def _podman_rootless(info: dict[str, Any]) -> bool:
    return bool(info.get("Rootless"))


def _there(found: Answering, image: str, program: str) -> None:
    from docker.errors import APIError, ImageNotFound

    try:
        found.client.images.get(image)
    except (ImageNotFound, APIError):
        tags = {tag for one in found.client.images.list() for tag in one.tags}
        raise ImageMissingError(
            f"{found} has no image {image}",
            place="--image",
            choices=tags,
            value=image,
            next_step=f"{program} pull {image}",
        ) from None


def _contents(image: str, program: str, address: str) -> Manifest | None:
    """What the image's Python can import; None where it has none that answers."""
    directory = package_directory("runtimes/discover")
    text = "\n".join((directory / name).read_text() for name in ("find.py", "importable.py"))
    options = ("--rm", "--pull", "never", "--network", "none", "--entrypoint", "python3")
    environment = (
        {**os.environ, "CONTAINER_HOST": address} if address and program == "podman" else None
    )
    done = shell.run(
        [program, "run", *options, image, "-c", text, *FRAMEWORKS],
        env=environment,
        timeout=_ANSWER,
        check=False,
    )
    told = next(
        (
            line.removeprefix("found: ")
            for line in done.stdout.splitlines()
            if line.startswith("found: ")
        ),
        None,
    )
    if told is None:
        return None
    said = json.loads(told)
    lines = (
        line.removeprefix("toolkit-modules: ")
        for line in done.stdout.splitlines()
        if line.startswith("toolkit-modules: ")
    )
    modules = json.loads(next(lines, "{}")).get("modules", ())
    python = Python(path=said["python"], version=said["version"], modules=tuple(modules))
    return Manifest(
        name=image,
        sif_id="",
        size=0,
        recipe_hash="",
        built="",
        frameworks=said["frameworks"],
        pythons=(python,),
    )
