"""Docker's own client. It is needed since the docker SDK speaks with the engine's old builder only (see ``docker``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.build.docker import lend as docker_lend
from toolkit.images.build.docker.clients import BuildRequest, proxies
from toolkit.images.build.docker.log import Reader
from toolkit.runtimes.discover.docker_engine import Engine

_KEPT = ("HOME", "PATH", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


@dataclass(frozen=True)
class DockerClient:
    """A Docker client that can ask an engine to build by BuildKit, which does one thing after the other and ends with its client."""

    program: str
    version: str
    mark: str = ""
    room: str = "docker system df; docker builder prune"
    apart: bool = False

    def reader(self) -> Reader:
        return Reader()

    def variables(self) -> dict[str, str]:
        """None: BuildKit takes proxies as arguments without keeping them."""
        return {}

    def add_mounts(self, dockerfile: str) -> str:
        return docker_lend.add_mounts(dockerfile)

    def base(self, engine: Engine, name: str) -> str:
        """The name: it builds from no id."""
        del engine
        return name

    def command(self, engine: Engine, order: BuildRequest) -> list[str]:
        del engine
        # The values are taken from the environment.
        arguments = [word for name in proxies(_direct(order)) for word in ("--build-arg", name)]
        return [
            self.program,
            "build",
            "--progress=plain",
            *order.options(),
            *arguments,
            str(order.context),
        ]

    def environment(self, engine: Engine, order: BuildRequest) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        settings = {
            "DOCKER_BUILDKIT": "1",
            "BUILDX_BUILDER": "default",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
            "LC_ALL": "C.UTF-8",
        }
        return {**kept, **proxies(_direct(order)), **settings, "DOCKER_HOST": engine.address}


def _direct(order: BuildRequest) -> str:
    """What is served here is not fetched through a proxy."""
    return "127.0.0.1" if order.lends.hidden else ""


def find() -> DockerClient:
    """The client on the PATH that speaks BuildKit's protocol; the SDK does not.

    Up to 20.10 the client itself does, since 23 its plugin ``buildx``: a machine may have a newer
    client without the plugin before an older one on its PATH, so all are tried.

    Raises:
        NeedsInstallError: there is none.
    """
    seen: list[str] = []
    directories = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"]
    for program in dict.fromkeys(
        str(Path(directory) / "docker") for directory in directories if directory
    ):
        if not os.access(program, os.X_OK):
            continue
        version = shell.run(
            [program, "version", "--format", "{{.Client.Version}}"], check=False, timeout=30
        ).stdout.strip()
        number = version.split(".")[0]
        if number.isdigit() and (
            18 < int(number) < 23
            or shell.run([program, "buildx", "version"], check=False, timeout=30).ok
        ):
            return DockerClient(program, version)
        seen.append(f"{program} {version}: without its plugin buildx")
    raise NeedsInstallError(
        "no Docker client that can build is installed here",
        details=seen,
        next_step="install Docker's plugin buildx (Debian: apt-get install docker.io, or docker-buildx), or build with: --engine apptainer",
    )
