"""A real podman for tests: its service on a socket of their own, with images, containers and settings of their own.

As the engine of Docker beside it (``engine_fixtures``): below one directory, with mounts that end
with it, without networks.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine_fixtures import (
    Service,
    TestRegistry,
    answers,
    overlays,
    said_by,
    start,
)
from tests.cluster.ranks import wait_for

# The machine may not let root raise a limit, and podman's own are above those of most machines.
_SETTINGS = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
lock_type = "file"
runtime = "runc"
"""
_NPROC = 32768  # the most that a build by podman leaves its service


class TestPodman(Service):
    """A service of podman."""

    __test__ = False

    def client(self, *words: str, input: bytes | None = None, check: bool = True) -> str:
        """What podman's client says."""
        return said_by(
            ["podman", "--remote", "--url", self.address, *words],
            dict(os.environ),
            input,
            check=check,
        )

    def containers(self) -> list[str]:
        """The names of all, also of those in which something is built."""
        return self.client("ps", "--all", "--external", "--format", "{{.Names}}").split()


def start_podman(directory: Path, registry: TestRegistry | None = None) -> TestPodman:
    """A service with its data in ``directory``, which must be short: podman takes 50 characters for what it keeps while it runs."""
    directory.mkdir(exist_ok=True)
    files, processes = (
        resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    (directory / "containers.conf").write_text(
        _SETTINGS.format(files=files, processes=min(processes, _NPROC) if processes > 0 else _NPROC)
    )
    insecure = f'[[registry]]\nlocation = "{registry.name}"\ninsecure = true\n' if registry else ""
    (directory / "registries.conf").write_text(insecure)
    sock = directory / "podman.sock"
    settings = [
        f"CONTAINERS_CONF={directory}/containers.conf",
        f"CONTAINERS_REGISTRIES_CONF={directory}/registries.conf",
    ]
    places = {"root": "data", "runroot": "r", "tmpdir": "tmp", "network-config-dir": "net"}
    options = [
        word for option, name in places.items() for word in (f"--{option}", str(directory / name))
    ]
    options += [
        "--storage-driver",
        "overlay" if overlays(directory) else "vfs",
        *"--cgroup-manager cgroupfs --events-backend file".split(),
    ]
    options += ["--log-level", "info"]  # as systemd starts it: requests are logged
    command = ["podman", *options, "system", "service", "--time", "0", f"unix://{sock}"]
    daemon = start(
        ["env", *settings, "unshare", "--mount", "--propagation", "private", *command],
        directory,
        "podman",
    )
    wait_for(lambda: daemon.process.poll() is not None or answers(sock), "podman to answer")
    assert daemon.process.poll() is None, daemon.log.read_text()[-3000:]
    return TestPodman(f"unix://{sock}", directory, daemon)


@pytest.fixture(scope="session")
def podman(engine_directory: Path, cgroups: None, registry: TestRegistry) -> Iterator[TestPodman]:
    """A podman of the tests' own, empty at first."""
    del cgroups
    if os.geteuid() != 0:
        pytest.skip("the tests' podman is started by root")
    service = start_podman(engine_directory / "p", registry)
    yield service
    service.end()
