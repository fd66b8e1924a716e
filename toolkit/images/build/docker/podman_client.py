"""podman's own client, through the socket that was found.

What it does otherwise than BuildKit, found with 4.3.1 (buildah 1.28), and what is done about it:

- Where something is mounted on a step, buildah removes the place afterwards, also one that was there before: a file system in memory on
  ``/mnt`` would take that directory out of the image. The files of secrets alone leave nothing, so there is no file system below them.
- Arguments of a build are words of a request, which podman's service writes to its log (systemd starts it so). Variables with passwords,
  those of proxies, are lent as one more file that each step reads first.
- Whether a step can be kept is decided without a look at what it mounts from another stage, and stages run in any order. So each stage
  whose files are mounted is built as an image of its own first, and the step names that image: when that is another, the key is.
- When the client is gone, the step that runs goes on, though none follows it. Each step has a word in its environment, by which its
  processes are found and ended (``guard``); podman removes the rest. That word goes in as a variable that is part of no key.
- Through its socket it does not listen to some options, and says nothing: ``--volume``, ``--identity-label``. They are not used.
- It builds from an id, without asking a registry what a name means.

The secrets are sent to the service, which keeps them in a directory of its own for as long as it
builds. Where it is killed meanwhile, they stay there, and the container of the step stays in its
store (``podman ps --all --external``).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field

from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.build.docker.clients import BuildRequest, proxies
from toolkit.images.build.docker.lend import SECRETS, VARIABLES, MountForm, add_mounts, secret_mount
from toolkit.images.build.docker.podman_log import Reader
from toolkit.images.build.host_mounts import ROOT
from toolkit.runtimes.discover.docker_engine import Engine

_KEPT = (
    "HOME",
    "PATH",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "CONTAINERS_CONF",
    "CONTAINER_SSHKEY",
    "SSH_AUTH_SOCK",
)
_READ = f"[ ! -f {ROOT}/{VARIABLES} ] || . {ROOT}/{VARIABLES}"
_FORM = MountForm(tuple(map(secret_mount, (*SECRETS, VARIABLES))), f"{_READ}; exec 2>&1")


@dataclass(frozen=True)
class PodmanClient:
    """podman, asking a service for builds."""

    program: str
    mark: str = field(default_factory=lambda: f"toolkit-{secrets.token_hex(8)}.invalid")
    room: str = "podman system df; podman image prune"
    apart: bool = True

    def reader(self) -> Reader:
        return Reader()

    def variables(self) -> dict[str, str]:
        """The proxies; what is served here is not fetched through one."""
        found = proxies("127.0.0.1") if proxies("") else {}
        # In the place of the mark, which programs would look at first.
        return (
            {**found, "no_proxy": found.get("no_proxy", found.get("NO_PROXY", ""))} if found else {}
        )

    def add_mounts(self, dockerfile: str) -> str:
        return add_mounts(dockerfile, _FORM)

    def base(self, engine: Engine, name: str) -> str:
        """The id."""
        return str(engine.client.images.get(name).id)

    def command(self, engine: Engine, order: BuildRequest) -> list[str]:
        words = [
            self.program,
            "--remote",
            "--url",
            engine.address,
            "build",
            "--layers",
            "--force-rm",
            "--pull=never",
        ]
        return [*words, "--build-arg", "no_proxy", *order.options(), str(order.context)]

    def environment(self, engine: Engine, order: BuildRequest) -> dict[str, str]:
        del engine, order
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {**kept, "LC_ALL": "C.UTF-8", "no_proxy": self.mark}


def find() -> PodmanClient:
    """The client on the PATH.

    Raises:
        NeedsInstallError: there is none.
    """
    program = shell.which("podman")
    if program is None:
        raise NeedsInstallError(
            "what answers is podman, and its client is not installed here",
            next_step="install podman (Debian: apt-get install podman), or set DOCKER_HOST to a Docker engine, or: --engine apptainer",
        )
    return PodmanClient(program)
