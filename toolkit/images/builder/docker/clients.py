"""The clients that ask an engine to build a Dockerfile, Docker's and podman's, and their output.

The docker SDK cannot take their place: it speaks only the protocol of the engine's old builder,
which mounts no secrets into a step (see ``host_files``).
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.builder.buildlog import Reader
from toolkit.images.builder.follow import Follower
from toolkit.images.recipe.plan import STEP
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
# Of BuildKit (--progress=plain), whose steps are numbered and run in parallel.
_OUTPUT = re.compile(r"#(\d+) \d+\.\d+ ?(.*)")
_STATUS = re.compile(r"#(\d+) (.*)")
# An instruction that is a step of the recipe, as both clients announce it.
_RUN = re.compile(
    rf"(?:\[[^\]]+\]|STEP \d+/\d+:) RUN .*?{re.escape(STEP)}(?P<name>[^ :]+): (?P<detail>[^'\";]*)"
)
_PRINTED = re.compile(rf"{re.escape(STEP)}([^ :]+): (.*)")
_CACHED = re.compile(r"CACHED\Z|--> Using cache ")
_FAILED = re.compile(r"\AERROR\b|Error: (?:error )?building at STEP ")
_CODE = re.compile(r"exit (?:code|status):? (\d+)\s*\Z")
_QUIET = 1.0  # seconds without a process, after which podman will start no more of them


@dataclass(frozen=True)
class Client:
    """A program that builds by an engine.

    Where podman differs from BuildKit (seen with podman 4.3.1, buildah 1.28), and the answer to it:

    - After a step, buildah removes the directory that something was mounted on, even if it existed
      before: a tmpfs on ``/mnt`` would delete that directory from the image. Files of secrets leave
      nothing behind, so there is no tmpfs below them.
    - The cache ignores what a step mounts from another stage. So nothing is taken from the cache
      where a stage compiles something for the image.
    - When the client is gone, the current step goes on. Each step has a word in its environment, by
      which ``end_marked`` finds its processes. The word is passed as a variable that is part of no
      cache key.
    - It builds from an id, without asking a registry what a name means.

    Attributes:
        engine: The engine.
        program: The path of the client.
        mark: The word in the environment of podman's steps; empty for Docker, whose steps end when
            the client ends.
    """

    engine: Engine
    program: str
    mark: str = ""

    def command(
        self, context: Path, base: str, files: Mapping[str, Path], result: Path, *, fresh: bool
    ) -> list[str]:
        """Return the command line, of which no argument holds a secret.

        Args:
            context: The directory that is sent to the engine, with the Dockerfile in it.
            base: The engine's name of the base.
            files: The files of the secrets, by their ids.
            result: The file that receives the image's id.
            fresh: Do not use the engine's cache.
        """
        image = self.engine.client.images.get(base).id if self.mark else base
        words = [self.program, "build", "--progress=plain"]
        if self.mark:
            words = [self.program, "--remote", "--url", self.engine.address, "build", "--layers"]
            words += ["--force-rm", "--pull=never", "--build-arg", "no_proxy"]
        words += ["--network=host", "--iidfile", str(result), "--build-arg", f"BASE={image}"]
        words += ["--no-cache"] if fresh else []
        for name, path in sorted(files.items()):
            words += ["--secret", f"id={name},src={path}"]
        return [*words, str(context)]

    def environment(self) -> dict[str, str]:
        """Return the client's whole environment, without settings that choose another engine."""
        names = _PODMAN_VARIABLES if self.mark else _DOCKER_VARIABLES
        variables = {name: os.environ[name] for name in names if name in os.environ}
        variables["LC_ALL"] = "C.UTF-8"
        if self.mark:
            return {**variables, "no_proxy": self.mark}
        return {
            **variables,
            "DOCKER_BUILDKIT": "1",
            "BUILDX_BUILDER": "default",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
            "DOCKER_HOST": self.engine.address,
        }


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


def find_client(engine: Engine) -> Client:
    """Find the program that can ask this engine to build.

    Raises:
        NeedsInstallError: It is not installed.
    """
    if not engine.is_podman:
        return Client(engine, find_docker())
    program = shell.which("podman")
    if program is None:
        raise NeedsInstallError(
            "the engine is podman, and podman's client is not installed here",
            next_step="install podman (Debian: apt-get install podman), or set DOCKER_HOST to a"
            " Docker engine, or: --engine apptainer",
        )
    return Client(engine, program, mark=f"toolkit-{secrets.token_hex(8)}.invalid")


def find_docker() -> str:
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
            return program
        rejected.append(f"{program} {version}: without its plugin buildx")
    raise NeedsInstallError(
        "no Docker client that can build is installed here",
        details=rejected,
        next_step="install Docker's plugin buildx (Debian: apt-get install docker.io, or"
        " docker-buildx), or build with: --engine apptainer",
    )


class ClientLog:
    """Read what a client prints, without its prefixes, as the log of any other build.

    Attributes:
        cached: The steps that came from the engine's cache.
        code: The exit code of the step that failed; None if the client ended for another reason.
        reader: Knows the step that began last, or that failed, and the end of its output.
    """

    def __init__(self, follower: Follower, details: dict[str, str]) -> None:
        self.cached: list[str] = []
        self.code: int | None = None
        self.reader = Reader([])
        self._follower, self._details = follower, details
        self._readers: dict[str, Reader] = {"": self.reader}  # by the number of an instruction
        self._names: dict[str, str] = {}
        self._no_space = self._has_failed = False

    def take(self, line: str) -> None:
        """Take a line of the output."""
        self._no_space = self._no_space or "no space left on device" in line.lower()
        self.reader.no_space = self._no_space
        if self._has_failed:
            return  # what follows repeats the output
        text = line.rstrip("\n")
        output = _OUTPUT.fullmatch(text)
        status = None if output else _STATUS.fullmatch(text)
        number, text = match.groups() if (match := output or status) else ("", text)
        reader = self._readers.setdefault(number, Reader([]))
        if not output and (run := _RUN.search(text)):
            self._names[number] = run["name"]
            self._details[run["name"]] = run["detail"].strip()
        elif not output and _CACHED.match(text):
            name = self._names.get(number)
            if name and name not in self.cached:
                self.cached.append(name)
                self._follower.reuse(name)
        elif not output and _FAILED.search(text):
            self._fail(number, reader, text)
        elif not status:
            self._take_output(number, reader, text)

    def _take_output(self, number: str, reader: Reader, text: str) -> None:
        """Take a line that an instruction printed."""
        printed = _PRINTED.fullmatch(text)
        if printed and printed[1] == self._names.get(number):
            self._details[printed[1]] = printed[2]
            self._follower.begin(printed[1])
            reader.enter(printed[1])
            self.reader = reader
        else:
            reader.feed(text)

    def _fail(self, number: str, reader: Reader, text: str) -> None:
        """Take the first line about a failure."""
        self._has_failed = True
        reader.enter(self._names.get(number, reader.step))
        code = _CODE.search(text)
        self.code = int(code[1]) if code else None
        if code is None:
            reader.tail.append(text)
        self.reader = reader
        reader.no_space = self._no_space
