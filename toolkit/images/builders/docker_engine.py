"""The Docker engine of this machine, or the one that the user's Docker is set to: found, and spoken with through the docker SDK."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import shell
from toolkit.errors import ForbiddenError, NeedsInstallError

if TYPE_CHECKING:
    from docker import DockerClient

_SYSTEM_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_PATIENCE = 600  # seconds for one answer: saving a large image takes long
_TLS_FILES = ("ca.pem", "cert.pem", "key.pem")


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
        return self.name == "Podman"

    def __str__(self) -> str:
        return f"{self.name.lower()} {self.version}"


def engine() -> Engine:
    """The engine that the user's settings name, else the first that answers at a usual place.

    Raises:
        NeedsInstallError: none answers; says what was tried.
        ForbiddenError: there is one, and this user may not talk to it.
    """
    refused: list[str] = []
    forbidden = False
    for address, settings in _candidates():
        try:
            return _connected(address, settings)
        except _NotThereError as error:
            refused.append(f"{address}: {error}")
            forbidden = forbidden or error.forbidden
    if forbidden:
        raise ForbiddenError(
            "this user may not talk to the Docker engine",
            details=refused,
            next_step="ask the administrator for it (usually the group docker), or build with: --engine apptainer",
        )
    raise NeedsInstallError(
        "no Docker engine answers",
        details=refused or ("no socket is at any of the usual places",),
        next_step="start one (Debian: apt-get install docker.io), or set DOCKER_HOST, or build with: --engine apptainer",
    )


class _NotThereError(Exception):
    def __init__(self, reason: str, *, forbidden: bool = False) -> None:
        super().__init__(reason)
        self.forbidden = forbidden


def _candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Addresses, each with what the SDK needs besides. What the user has chosen is the only one."""
    chosen = os.environ.get("DOCKER_HOST")
    if chosen:
        yield chosen, _tls_of_environment()
        return
    context = _context()
    if context:
        yield context
        return
    own = os.environ.get("XDG_RUNTIME_DIR")
    sockets = [_SYSTEM_SOCKETS[0], *((f"{own}/docker.sock", f"{own}/podman/podman.sock") if own else ()), _SYSTEM_SOCKETS[1]]
    yield from ((f"unix://{socket}", {}) for socket in sockets if Path(socket).exists())


def _tls_of_environment() -> dict[str, Any]:
    """As Docker's own client does it: certificates are used where ``DOCKER_TLS_VERIFY`` is set."""
    if not os.environ.get("DOCKER_TLS_VERIFY"):
        return {}
    directory = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    return _tls(*(str(directory / name) for name in _TLS_FILES))


def _tls(authority: str, certificate: str, key: str) -> dict[str, Any]:
    from docker.tls import TLSConfig

    return {"tls": TLSConfig(client_cert=(certificate, key), ca_cert=authority, verify=True)}


def _context() -> tuple[str, dict[str, Any]] | None:
    """The context that `docker context use` or ``DOCKER_CONTEXT`` chose; None for Docker's own default."""
    from docker.context import ContextAPI
    from docker.errors import DockerException

    try:
        name = os.environ.get("DOCKER_CONTEXT")  # which the SDK leaves out
        context = ContextAPI.get_context(name) if name else ContextAPI.get_current_context()
    except (DockerException, OSError, ValueError, KeyError, TypeError):
        return None
    if context is None or context.name == "default" or not context.Host:
        return None
    return str(context.Host), {"tls": context.TLSConfig} if context.TLSConfig else {}


def _connected(address: str, settings: dict[str, Any]) -> Engine:
    import docker
    from docker.errors import DockerException

    if address.startswith("ssh://"):
        settings = {**settings, "use_ssh_client": True}
    try:
        client = docker.DockerClient(base_url=address, version="auto", timeout=_PATIENCE, **settings)
        said = client.version()
        root = Path(str(client.info().get("DockerRootDir") or "/-"))
    except (DockerException, OSError, ValueError) as error:
        raise _not_there(error) from None
    components = [str(component.get("Name", "")) for component in said.get("Components") or ()]
    name = "Podman" if any("podman" in component.lower() for component in components) else "Docker"
    local = address.startswith("unix://") and root.is_dir()
    return Engine(client, address, name, str(said.get("Version", "?")), root if local else None)


def _not_there(error: Exception) -> _NotThereError:
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return _NotThereError("permission denied", forbidden=True)
    known = {"FileNotFoundError": "no such socket", "ConnectionRefusedError": "nothing listens there"}
    return _NotThereError(next((reason for mark, reason in known.items() if mark in text), text[:200]))


@dataclass(frozen=True)
class Builder:
    """A Docker client that can ask an engine to build by BuildKit."""

    program: str
    version: str


def builder() -> Builder:
    """The client on the PATH that speaks BuildKit's protocol; the SDK does not.

    Up to 20.10 the client itself does, since 23 its plugin ``buildx``: a machine may have a newer client without the plugin before an older
    one on its PATH, so all are tried.

    Raises:
        NeedsInstallError: there is none.
    """
    seen: list[str] = []
    directories = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"]
    for program in dict.fromkeys(str(Path(directory) / "docker") for directory in directories if directory):
        if not os.access(program, os.X_OK):
            continue
        version = shell.run([program, "version", "--format", "{{.Client.Version}}"], check=False, timeout=30).stdout.strip()
        number = version.split(".")[0]
        if number.isdigit() and (18 < int(number) < 23 or shell.run([program, "buildx", "version"], check=False, timeout=30).ok):
            return Builder(program, version)
        seen.append(f"{program} {version}: without its plugin buildx")
    raise NeedsInstallError(
        "no Docker client that can build is installed here",
        details=seen,
        next_step="install Docker's plugin buildx (Debian: apt-get install docker.io, or docker-buildx), or build with: --engine apptainer",
    )
