"""The door to Docker and podman: the engine of this machine, and what an image of it holds.

The engine is the one that the user has set, or else that of the machine. It is called through the
docker SDK.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import shell
from toolkit.errors import ForbiddenError, ImageMissingError, NeedsInstallError
from toolkit.model import image as model
from toolkit.model.image import Manifest
from toolkit.runtimes.base import FRAMEWORKS
from toolkit.runtimes.environments import PROBE_SECONDS, parse, program

if TYPE_CHECKING:
    from docker import DockerClient


_SYSTEM_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_PATIENCE = 600  # seconds for one answer: saving a large image takes long
_FORBIDDEN = "permission denied"
_REASONS = {
    "Permission denied": _FORBIDDEN,
    "PermissionError": _FORBIDDEN,
    "FileNotFoundError": "no such socket",
    "ConnectionRefusedError": "nothing listens there",
}


@dataclass(frozen=True)
class Engine:
    """An engine that answers.

    Attributes:
        client: of the SDK.
        address: ``unix:///var/run/docker.sock``.
        name: ``Docker`` or ``Podman``.
        version: of it.
        root: where it keeps images, if that is a directory of this machine.
    """

    client: DockerClient
    address: str
    name: str
    version: str
    root: Path | None = None

    @property
    def is_podman(self) -> bool:
        """True if it is podman, which also answers Docker's API."""
        return self.name == "Podman"

    @property
    def is_ours(self) -> bool:
        """True if this user may end the engine's processes, and they run on this machine."""
        if not self.address.startswith("unix://"):
            return False
        try:
            return os.geteuid() in (0, Path(self.address.removeprefix("unix://")).stat().st_uid)
        except OSError:
            return False

    def __str__(self) -> str:
        return f"{self.name.lower()} {self.version}"


def find_engine(
    place: str | None = None, instead: str = "build with: --engine apptainer"
) -> Engine:
    """Return the engine that the user's settings name, or the first at a usual place.

    Args:
        place: the option that asks for an engine.
        instead: what to do without one.

    Raises:
        NeedsInstallError: none answers; the error names the addresses.
        ForbiddenError: there is one, and this user may not talk to it.
    """
    from docker.errors import DockerException

    refused: list[str] = []
    for address, settings in _candidates():
        try:
            return _connected(address, settings)
        except (DockerException, OSError, ValueError) as error:
            text = str(error)
            known = (reason for mark, reason in _REASONS.items() if mark in text)
            refused.append(f"{address}: {next(known, text[:200])}")
    if any(text.endswith(_FORBIDDEN) for text in refused):
        raise ForbiddenError(
            "this user may not talk to the Docker engine",
            place=place,
            details=refused,
            next_step=f"ask the administrator for it (usually the group docker), or {instead}",
        )
    raise NeedsInstallError(
        "no Docker engine answers",
        place=place,
        details=refused or ("no socket is at any of the usual places",),
        next_step="start one (Debian: apt-get install docker.io), or set DOCKER_HOST, "
        f"or {instead}",
    )


def _candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield addresses, each with further settings of the SDK.

    An address that the user has chosen is the only one: by ``DOCKER_HOST``, or by a context
    (`docker context use`, ``DOCKER_CONTEXT``) that is not Docker's own default.
    """
    from docker.context import ContextAPI
    from docker.errors import DockerException

    if chosen := os.environ.get("DOCKER_HOST"):
        yield chosen, {}
        return
    context = None
    with suppress(DockerException, OSError, ValueError, KeyError, TypeError):
        # The SDK leaves DOCKER_CONTEXT out; without a name it takes the current context.
        context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT") or None)
    if context is not None and context.name != "default" and context.Host:
        yield str(context.Host), {"tls": context.TLSConfig} if context.TLSConfig else {}
        return
    own = os.environ.get("XDG_RUNTIME_DIR")
    sockets = [
        _SYSTEM_SOCKETS[0],
        *((f"{own}/docker.sock", f"{own}/podman/podman.sock") if own else ()),
        _SYSTEM_SOCKETS[1],
    ]
    yield from ((f"unix://{socket}", {}) for socket in sockets if Path(socket).exists())


def _connected(address: str, settings: dict[str, Any]) -> Engine:
    """Return the engine at an address; the SDK's errors are of one that does not answer."""
    import docker

    if os.environ.get("DOCKER_TLS_VERIFY") and address == os.environ.get("DOCKER_HOST"):
        settings = {"tls": docker.utils.kwargs_from_env().get("tls", False)}
    if address.startswith("ssh://"):
        settings = {**settings, "use_ssh_client": True}
    client = docker.DockerClient(base_url=address, version="auto", timeout=_PATIENCE, **settings)
    version, root = client.version(), Path(str(client.info().get("DockerRootDir") or "/-"))
    components = [str(component.get("Name", "")) for component in version.get("Components") or ()]
    name = "Podman" if any("podman" in component.lower() for component in components) else "Docker"
    # Where only root may look, is_dir raises.
    is_here = address.startswith("unix://") and os.path.isdir(root)  # noqa: PTH112
    return Engine(
        client, address, name, str(version.get("Version", "?")), root if is_here else None
    )


_CDI = ("/etc/cdi", "/var/run/cdi")  # where podman finds descriptions of GPUs


def discover(image: str) -> tuple[model.Engine, Manifest | None]:
    """Return the engine that answers on this machine, and what an image's Python can import.

    Raises:
        NeedsInstallError: no engine answers, or its client is missing.
        ForbiddenError: this user may not talk to it.
        ImageMissingError: it has no such image; the error names the nearest one.
    """
    from docker.errors import APIError, ImageNotFound

    connection = find_engine("--runtime docker", "--runtime apptainer")
    client = "podman" if connection.is_podman else "docker"
    if shell.which(client) is None:
        raise NeedsInstallError(
            f"an engine answers at {connection.address}, and its client {client} is not on PATH",
            place="--runtime docker",
        )
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
    info = connection.client.info()
    engine = model.Engine(
        program=client,
        address=address_for_client(connection),
        rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
        or bool(info.get("Rootless")),  # podman's
        nvidia="nvidia" in (info.get("Runtimes") or {})
        or (connection.is_podman and any(Path(place).is_dir() for place in _CDI)),
    )
    options = ("--rm", "--pull", "never", "--network", "none", "--entrypoint", "python3")
    is_remote = engine.address and engine.program == "podman"
    done = shell.run(
        [engine.program, "run", *options, image, "-c", program(), *FRAMEWORKS],
        env={**os.environ, "CONTAINER_HOST": engine.address} if is_remote else None,
        timeout=PROBE_SECONDS,
        check=False,
    )
    environment = parse(done.stdout, image)  # None: it has no Python that answers
    return engine, environment.manifest if environment else None


def address_for_client(connection: Engine) -> str:
    """Return the address that the client must be given; empty if it finds the engine by itself.

    Docker's client finds what answered here. podman's works for its own user, by no socket.
    """
    chosen = os.environ.get("DOCKER_HOST", "")
    return (
        chosen if chosen or not connection.is_podman or connection.is_ours else connection.address
    )
