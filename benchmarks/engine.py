"""The Docker engine with BuildKit for the benchmark of builds.

It is the one that ``DOCKER_HOST`` names, or Debian's own, which runs as long as the benchmark.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, ForbiddenError, NeedsInstallError

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 30.0  # seconds for it to start, and to end


@dataclass(frozen=True)
class Engine:
    """An engine that answers.

    Attributes:
        client: the program that talks to it.
        environment: of that program.
        version: of the engine.
    """

    client: str
    environment: Mapping[str, str]
    version: str


@contextmanager
def running(directory: Path) -> Iterator[Engine]:
    """Provide an engine in this context.

    Args:
        directory: for the files of one that has to be started; a short path, for its socket.

    Raises:
        NeedsInstallError: there is none, and none to start.
        ForbiddenError: only root can start one.
    """
    client = shutil.which("docker", path=_PATH) or shell.which("docker")
    if client is None:
        raise NeedsInstallError(
            "Docker is not installed here",
            next_step="apt-get install docker.io, or set DOCKER_HOST",
        )
    named = os.environ.get("DOCKER_HOST")
    if named:
        yield _asked(client, named)
        return
    if os.geteuid() != 0:
        raise ForbiddenError(
            "only root can start a Docker engine", next_step="set DOCKER_HOST to one that runs"
        )
    process = _start(directory)
    try:
        yield _wait(client, directory, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(directory: Path) -> subprocess.Popen[str]:
    """Start an engine with mounts of its own, which end with it.

    It makes no networks; what it runs uses the machine's.
    """
    options: list[str | Path] = [
        "--data-root",
        directory / "data",
        "--exec-root",
        directory / "exec",
        "--pidfile",
        directory / "pid",
    ]
    options += [
        "--host",
        f"unix://{directory}/socket",
        "--exec-opt",
        "native.cgroupdriver=cgroupfs",
        "--log-level",
        "error",
    ]
    options += ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
    with (directory / "log").open("w") as log:
        argv: list[str | Path] = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "dockerd",
            *options,
        ]
        environment = {**os.environ, "PATH": f"{_PATH}:{os.environ.get('PATH', '')}"}
        return shell.start(
            argv, env=environment, stdout=log.fileno(), stderr=log.fileno(), new_session=True
        )


def _wait(client: str, directory: Path, process: subprocess.Popen[str]) -> Engine:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        try:
            return _asked(client, f"unix://{directory}/socket")
        except CommandFailedError:
            time.sleep(0.2)
    tail = (directory / "log").read_text(errors="replace").splitlines()[-5:]
    raise CommandFailedError("the Docker engine does not start", place="dockerd", details=tail)


def _asked(client: str, address: str) -> Engine:
    environment = {**os.environ, "DOCKER_HOST": address, "DOCKER_BUILDKIT": "1"}
    version = shell.run(
        [client, "version", "--format", "{{.Server.Version}}"], env=environment, timeout=30
    ).stdout.strip()
    return Engine(client, environment, version)
