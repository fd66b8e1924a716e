"""The programs that ask an engine to build a Dockerfile: Docker's own client, and podman's.

The docker SDK cannot take their place: it speaks only the protocol of the engine's old builder,
which mounts no secrets into a step (see ``docker`` and ``host_secrets``).
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.builder.docker.host_secrets import (
    BUILDKIT,
    SECRETS,
    VARIABLES,
    MountedSecrets,
    MountForm,
    secret_mount,
)
from toolkit.images.builder.docker.log import BuildKitLog, PodmanLog
from toolkit.images.host import host_config
from toolkit.images.host.host_mounts import ROOT
from toolkit.runtimes.docker import Engine

_DOCKER_VARIABLES = ("HOME", "PATH", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
_PODMAN_VARIABLES = (
    "HOME",
    "PATH",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "CONTAINERS_CONF",
    "CONTAINER_SSHKEY",
    "SSH_AUTH_SOCK",
)
_SOURCE_VARIABLES = f"[ ! -f {ROOT}/{VARIABLES} ] || . {ROOT}/{VARIABLES}"
_PODMAN_FORM = MountForm(
    tuple(map(secret_mount, (*SECRETS, VARIABLES))), f"{_SOURCE_VARIABLES}; exec 2>&1"
)
_QUIET = 1.0  # seconds without a process of a service, after which it starts no more of them
_FROM = re.compile(r"^FROM \S+(?: AS (?P<name>\S+))?", re.MULTILINE)
_MOUNTED = re.compile(r"(?<=--mount=type=bind,from=)[^,\s]+")


@dataclass(frozen=True)
class BuildRequest:
    """One build that a client is asked for.

    Attributes:
        context: The directory that is sent to the engine, with the Dockerfile in it.
        base: The client's name for the base image.
        result: The file that receives the image's id.
        mounts: The host configuration that is mounted into the steps.
        target: The stage to end with; empty for the last.
        fresh: Do not use the engine's cache.
    """

    context: Path
    base: str
    result: Path
    mounts: MountedSecrets
    target: str = ""
    fresh: bool = False

    def options(self) -> list[str]:
        """Return the options that all clients share; no argument holds a secret."""
        words = [
            "--network=host",
            "--iidfile",
            str(self.result),
            "--build-arg",
            f"BASE={self.base}",
        ]
        words += ["--target", self.target] if self.target else []
        return [*words, *(("--no-cache",) if self.fresh else ()), *self.mounts.arguments()]


@dataclass(frozen=True)
class DockerClient:
    """A Docker client that speaks BuildKit's protocol; its steps end when the client ends.

    Attributes:
        program: The path of the client.
        mark: A word in the environment of every step, by which the step's processes are found and
            ended; empty here, because the engine ends them.
        space_commands: The commands that show and free the engine's disk space.
        stages_apart: Whether each stage whose files are mounted must first be built as an image.
        takes_ids: Whether it builds from an image's id; Docker takes names only.
        form: How the host configuration is mounted into the steps.
        log: Makes a reader of the client's output.
    """

    program: str
    version: str
    mark: str = ""
    space_commands: str = "docker system df; docker builder prune"
    stages_apart: bool = False
    takes_ids: bool = False
    form: MountForm = BUILDKIT
    log: type[BuildKitLog] = BuildKitLog

    def variables(self) -> dict[str, str]:
        """Return no variables for a file: BuildKit takes proxies as arguments and forgets them."""
        return {}

    def command(self, engine: Engine, request: BuildRequest) -> list[str]:
        """Return the command line."""
        del engine
        # Docker takes the values from the environment.
        arguments = [word for name in _request_proxies(request) for word in ("--build-arg", name)]
        words = [self.program, "build", "--progress=plain", *request.options(), *arguments]
        return [*words, str(request.context)]

    def environment(self, engine: Engine, request: BuildRequest) -> dict[str, str]:
        """Return the whole environment, without settings that choose another engine."""
        return {
            **_from_environment(_DOCKER_VARIABLES),
            **_request_proxies(request),
            "DOCKER_BUILDKIT": "1",
            "BUILDX_BUILDER": "default",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
            "LC_ALL": "C.UTF-8",
            "DOCKER_HOST": engine.address,
        }


@dataclass(frozen=True)
class PodmanClient:
    """podman's own client, through the socket that was found.

    Where podman differs from BuildKit (seen with podman 4.3.1, buildah 1.28), and the answer to it:

    - After a step, buildah removes the directory that something was mounted on, even if it existed
      before: a tmpfs on ``/mnt`` would delete that directory from the image. Files of secrets leave
      nothing behind, so there is no tmpfs below them.
    - Build arguments are part of a request that podman's service writes to its log if systemd
      starts it. Variables with passwords, those of proxies, are mounted as one more file that each
      step reads first.
    - The cache ignores what a step mounts from another stage, and stages run in any order. So each
      stage whose files are mounted is first built as an image of its own, and the step names that
      image: a different image changes the key.
    - When the client is gone, the current step goes on, but no further one starts. Each step has a
      word in its environment, by which ``end_marked`` ends its processes; podman removes the rest.
      The word is passed as a variable that is part of no cache key.
    - Through its socket it silently ignores some options: ``--volume``, ``--identity-label``. They
      are not used.
    - It builds from an id, without asking a registry what a name means.

    The secrets are sent to the service, which keeps them in a directory of its own during the
    build. If the service is killed, they stay there, and the step's container stays in its store
    (``podman ps --all --external``).
    """

    program: str
    mark: str = field(default_factory=lambda: f"toolkit-{secrets.token_hex(8)}.invalid")
    space_commands: str = "podman system df; podman image prune"
    stages_apart: bool = True
    takes_ids: bool = True
    form: MountForm = _PODMAN_FORM
    log: type[PodmanLog] = PodmanLog

    def variables(self) -> dict[str, str]:
        """Return the proxies for a file that steps read first.

        The server of ``host_secrets`` is reached without a proxy.
        """
        if not host_config.proxies():
            return {}
        variables = _proxies_except("127.0.0.1")
        # Replaces the mark, which programs would read first.
        direct = variables.get("no_proxy", variables.get("NO_PROXY", ""))
        return {**variables, "no_proxy": direct}

    def command(self, engine: Engine, request: BuildRequest) -> list[str]:
        """Return the command line."""
        words = [self.program, "--remote", "--url", engine.address, "build", "--layers"]
        words += ["--force-rm", "--pull=never", "--build-arg", "no_proxy", *request.options()]
        return [*words, str(request.context)]

    def environment(self, engine: Engine, request: BuildRequest) -> dict[str, str]:
        """Return the whole environment, without settings that choose another engine."""
        del engine, request
        return {**_from_environment(_PODMAN_VARIABLES), "LC_ALL": "C.UTF-8", "no_proxy": self.mark}


Client = DockerClient | PodmanClient


def end_marked(mark: str) -> None:
    """Kill the processes that a service started for a client, until it starts no more of them.

    Args:
        mark: The word in their environment; empty if there are none.
    """
    until = time.monotonic() + _QUIET
    while mark and time.monotonic() < until:
        for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with suppress(OSError):  # it belongs to another user, or has ended
                is_own = process.name == str(os.getpid())
                if not is_own and mark.encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    until = time.monotonic() + _QUIET
        time.sleep(0.02)


def _from_environment(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _request_proxies(request: BuildRequest) -> dict[str, str]:
    """Return the proxy variables; the server of ``host_secrets`` is reached without a proxy."""
    return _proxies_except("127.0.0.1") if request.mounts.masked else host_config.proxies()


def _proxies_except(host: str) -> dict[str, str]:
    variables = host_config.proxies()
    names = [name for name in ("no_proxy", "NO_PROXY") if name in variables] or ["no_proxy"]
    for name in names:
        variables[name] = ",".join(filter(None, (variables.get(name, ""), host)))
    return variables


def find_client(engine: Engine) -> Client:
    """Find the program that can ask this engine to build.

    Raises:
        NeedsInstallError: It is not installed.
    """
    return _find_podman() if engine.is_podman else find_docker()


def find_docker() -> DockerClient:
    """Find a Docker client on PATH that speaks BuildKit's protocol.

    Up to 20.10 the client itself does, since 23 its plugin ``buildx``. A machine may have a newer
    client without the plugin before an older one on its PATH, so all are tried.

    Raises:
        NeedsInstallError: There is none.
    """
    rejected: list[str] = []
    directories = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"]
    paths = (str(Path(directory) / "docker") for directory in directories if directory)
    for program in dict.fromkeys(path for path in paths if os.access(path, os.X_OK)):
        version = shell.run(
            [program, "version", "--format", "{{.Client.Version}}"], check=False, timeout=30
        ).stdout.strip()
        number = version.split(".")[0]
        if number.isdigit() and (
            18 < int(number) < 23
            or shell.run([program, "buildx", "version"], check=False, timeout=30).ok
        ):
            return DockerClient(program, version)
        rejected.append(f"{program} {version}: without its plugin buildx")
    raise NeedsInstallError(
        "no Docker client that can build is installed here",
        details=rejected,
        next_step="install Docker's plugin buildx (Debian: apt-get install docker.io, or"
        " docker-buildx), or build with: --engine apptainer",
    )


def _find_podman() -> PodmanClient:
    program = shell.which("podman")
    if program is None:
        raise NeedsInstallError(
            "the engine is podman, and podman's client is not installed here",
            next_step="install podman (Debian: apt-get install podman), or set DOCKER_HOST to a"
            " Docker engine, or: --engine apptainer",
        )
    return PodmanClient(program)


def first_mounted_stage(dockerfile: str) -> str:
    """Return the first stage whose files another stage mounts, or an empty string."""
    names = set(_MOUNTED.findall(dockerfile))
    return next(
        (match["name"] for match in _FROM.finditer(dockerfile) if match["name"] in names), ""
    )


def replace_stage(dockerfile: str, stage: str, image: str) -> str:
    """Return the Dockerfile without a stage; its files are mounted from an image instead."""
    stages = list(_FROM.finditer(dockerfile))
    starts = [*(match.start() for match in stages), len(dockerfile)]
    at = [match["name"] for match in stages].index(stage)
    rest = dockerfile[: starts[at]] + dockerfile[starts[at + 1] :]
    return _MOUNTED.sub(lambda match: image if match[0] == stage else match[0], rest)
