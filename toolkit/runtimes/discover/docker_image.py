"""The Docker engine or podman of this machine, and what an image of it holds."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError, ImageMissingError, NeedsInstallError
from toolkit.model.environment import Engine
from toolkit.model.image import Manifest
from toolkit.runtimes.discover.docker_engine import Engine as Connection
from toolkit.runtimes.discover.docker_engine import find_engine as connect
from toolkit.runtimes.discover.environments import PROBE_SECONDS, manifest_of, parse, program
from toolkit.runtimes.shared.findings import FRAMEWORKS

_CDI = ("/etc/cdi", "/var/run/cdi")  # where podman finds descriptions of GPUs


def discover(image: str) -> tuple[Engine, Manifest | None]:
    """Return the engine that answers on this machine, and what an image's Python can import.

    Raises:
        NeedsInstallError: no engine answers, or its client is missing.
        ForbiddenError: this user may not talk to it.
        ImageMissingError: it has no such image; the error names the nearest one.
    """
    try:
        connection = connect()
    except (NeedsInstallError, ForbiddenError) as error:
        error.place = "--runtime docker"
        error.next_step = (
            "start one (Debian: apt-get install docker.io), or set DOCKER_HOST, "
            "or --runtime apptainer"
        )
        raise
    client = "podman" if connection.is_podman else "docker"
    if shell.which(client) is None:
        raise NeedsInstallError(
            f"an engine answers at {connection.address}, and its client {client} is not on PATH",
            place="--runtime docker",
        )
    _require_image(connection, image, client)
    info = connection.client.info()
    address = address_for_client(connection)
    engine = Engine(
        program=client,
        address=address,
        rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
        or bool(info.get("Rootless")),  # podman's
        nvidia="nvidia" in (info.get("Runtimes") or {})
        or (connection.is_podman and any(Path(place).is_dir() for place in _CDI)),
    )
    return engine, _contents(image, engine)


def address_for_client(connection: Connection) -> str:
    """Return the address that the client must be given; empty if it finds the engine by itself.

    Docker's client finds what answered here. podman's works for its own user, by no socket.
    """
    chosen = os.environ.get("DOCKER_HOST", "")
    return (
        chosen if chosen or not connection.is_podman or connection.is_ours else connection.address
    )


def _require_image(connection: Connection, image: str, client: str) -> None:
    from docker.errors import APIError, ImageNotFound

    try:
        connection.client.images.get(image)
    except (ImageNotFound, APIError):
        tags = {tag for item in connection.client.images.list() for tag in item.tags}
        raise ImageMissingError(
            f"{connection} has no image {image}",
            place="--image",
            choices=tags,
            value=image,
            next_step=f"{client} pull {image}",
        ) from None


def _contents(image: str, engine: Engine) -> Manifest | None:
    """Return what the image's Python can import; None if it has no Python that answers."""
    options = ("--rm", "--pull", "never", "--network", "none", "--entrypoint", "python3")
    is_remote = engine.address and engine.program == "podman"
    done = shell.run(
        [engine.program, "run", *options, image, "-c", program(), *FRAMEWORKS],
        env={**os.environ, "CONTAINER_HOST": engine.address} if is_remote else None,
        timeout=PROBE_SECONDS,
        check=False,
    )
    python = parse(done.stdout)
    return manifest_of(image, python) if python else None
