"""What differs between the programs that can be asked to build by a Dockerfile: Docker's own, and podman's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from toolkit.images.build import host_config as host
from toolkit.images.build.docker.lend import MountedSecrets
from toolkit.runtimes.discover.docker_engine import Engine


@dataclass(frozen=True)
class BuildRequest:
    """One build that a client is asked for.

    Attributes:
        context: the directory that is handed over, with the Dockerfile in it.
        base: what the client calls the image that it begins with.
        result: the file that gets the id of the image.
        lends: what is lent to the steps.
        target: the stage to end with; empty: the last.
        fresh: use nothing that was kept.
    """

    context: Path
    base: str
    result: Path
    lends: MountedSecrets
    target: str = ""
    fresh: bool = False

    def options(self) -> list[str]:
        """Those that every client knows by the same name; no argument holds what is lent."""
        words = [
            "--network=host",
            "--iidfile",
            str(self.result),
            "--build-arg",
            f"BASE={self.base}",
        ]
        words += ["--target", self.target] if self.target else []
        return [*words, *(("--no-cache",) if self.fresh else ()), *self.lends.arguments()]


class Log(Protocol):
    """Follows what a client prints; ``docker_log.Reader`` says what each attribute is."""

    step: str
    detail: str
    command: str
    tail: deque[str]
    no_space: bool
    code: int | None
    gone: bool

    def feed(self, line: str) -> Literal["step", "kept"] | None:
        """Take a line without its end; says whether a step began, or was found in the cache."""


class Client(Protocol):
    """A program that asks an engine to build.

    Attributes:
        mark: a word in the environment of every step, by which it is found when nobody else ends it; empty where the engine does that.
        room: the commands that show and make room where it keeps images.
        apart: whether a stage whose files other steps mount has to be an image of its own before.
    """

    @property
    def mark(self) -> str: ...

    @property
    def room(self) -> str: ...

    @property
    def apart(self) -> bool: ...

    def reader(self) -> Log:
        """Of one build."""

    def variables(self) -> dict[str, str]:
        """The variables of this machine that steps get as a file, since in any other way somebody would write them down."""

    def add_mounts(self, dockerfile: str) -> str:
        """The Dockerfile whose steps see what is lent."""

    def base(self, engine: Engine, name: str) -> str:
        """What it calls an image that the engine has under this name."""

    def command(self, engine: Engine, order: BuildRequest) -> list[str]:
        """Its command line."""

    def environment(self, engine: Engine, order: BuildRequest) -> dict[str, str]:
        """All variables that it sees: the user's, for its own settings, but for what could send the build to another engine."""


def proxies(direct: str) -> dict[str, str]:
    """The proxy variables of this machine, with hosts that are not to be reached through a proxy; empty: as they are."""
    found = host.proxies()
    if direct:
        for name in [name for name in ("no_proxy", "NO_PROXY") if name in found] or ["no_proxy"]:
            found[name] = ",".join(filter(None, (found.get(name, ""), direct)))
    return found
