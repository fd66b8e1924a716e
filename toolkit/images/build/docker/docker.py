"""Building by Docker or podman: a Dockerfile becomes an image in the engine, and that a SIF.

The docker SDK is the door to the engine: it finds it, brings the base there, names and saves
images. It does not build: it speaks with the engine's old builder only, which can lend nothing to a
step (``docker_lend``), and has no session for BuildKit's secrets. So the build itself goes through
the engine's own client (``clients``), which is given files by name and nothing secret in an
argument.

The image gets its name, ``toolkit/<recipe>``, when its SIF has passed the checks; a build that
fails or is stopped names nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit import shell
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    NeedsInstallError,
    NoSpaceError,
    ToolkitError,
)
from toolkit.images.build import host_config as host
from toolkit.images.build.apptainer.apptainer import BuildOutcome
from toolkit.images.build.docker import base as docker_base
from toolkit.images.build.docker import client as docker_client
from toolkit.images.build.docker import podman_client
from toolkit.images.build.docker import stages as docker_stages
from toolkit.images.build.docker.clients import BuildRequest, Client, Log
from toolkit.images.build.docker.convert import convert
from toolkit.images.build.docker.lend import WHEELS, mount_host_config
from toolkit.images.build.fetched import ResolvedBase
from toolkit.images.build.follow import Follower
from toolkit.images.build.host_mounts import find_secrets
from toolkit.images.build.workspace import Workspace
from toolkit.images.recipe.bases import Debootstrap
from toolkit.images.recipe.resolve import Resolved
from toolkit.progress import Progress
from toolkit.runtimes.discover.docker_engine import Engine, find_engine
from toolkit.units import human_size

_MEGABYTE = 10**6


def build(
    resolved: Resolved,
    definition: str,
    place: Workspace,
    log: Path,
    progress: Progress,
    expected: Mapping[str, float],
    *,
    base: ResolvedBase | None = None,
    wheels: Path | None = None,
    fresh: bool = False,
) -> BuildOutcome:
    """Build the image by Docker, and ``place.sif`` from it; everything that is said on the way goes to ``log``.

    Args:
        resolved: the recipe.
        definition: its Dockerfile.
        place: where to work.
        log: the file that gets the whole log.
        progress: is told the steps.
        expected: seconds that each step is likely to take, by name.
        base: which image the base is, where it is from a registry or an archive.
        wheels: a directory of what was compiled before, for the steps to take.
        fresh: use nothing of the engine's cache.

    Raises:
        BuildError: a step or a check failed, or the engine ended; names the step, its command, and the end of the log.
        NoSpaceError: a disk was full.
        NeedsInstallError, ForbiddenError: there is no engine, no client of it, or no Apptainer; or this user may not use them.
        ConfigError, UnknownImageError, CommandFailedError: of the base.
    """
    _require_apptainer()
    found = find_engine()
    client = find_client(found)
    _require_space(found, client, resolved)
    _say_what_cannot_be_ended(found, client, progress)
    loan = host.collect_host_config()
    with mount_host_config(
        loan, _private(place.output / "lent"), variables=client.variables(), **_mirror(resolved)
    ) as lends:
        details = {
            "base": resolved.base.detail(),
            "convert": "a SIF of it",
            "checks": "run the image's checks",
            "pack": "into one file",
        }
        hidden = (*lends.hidden, *find_secrets((*loan.files.values(), *host.proxies().values())))
        follower = Follower(resolved.name, details, log, progress, expected=expected, secret=hidden)
        follower.begin("base")
        name = docker_base.prepare_base(found, resolved.base, base, place, follower)
        run = Build(resolved.name, found, client, place, follower, details, client.reader())
        order = BuildRequest(
            _context(place, wheels),
            client.base(found, name),
            place.output / "image.id",
            lends,
            fresh=fresh,
        )
        image = run.image(client.add_mounts(definition), order)
    follower.begin("convert")
    packer = convert(found, image, resolved, place, follower)
    follower.end()
    _name(found, image, resolved.name)
    return BuildOutcome(
        follower.reader.results, f"{found}, {packer}", follower.seconds, tuple(run.kept)
    )


def _require_apptainer() -> None:
    """Before the engine works for nothing."""
    if shell.find_apptainer() is None:
        raise NeedsInstallError(
            "Apptainer is not installed here, which makes a SIF of what Docker built",
            next_step="toolkit setup",
        )


def find_client(found: Engine) -> Client:
    """The program that asks this engine to build.

    Raises:
        NeedsInstallError: it is not installed here.
    """
    return podman_client.find() if found.is_podman else docker_client.find()


def _say_what_cannot_be_ended(found: Engine, client: Client, progress: Progress) -> None:
    """Where an engine does not end its steps with their client, and they are not this user's processes."""
    if client.mark and not found.is_ours:
        progress.say(
            "warning",
            f"{found} runs elsewhere or as another user: a step that this build is stopped in goes on to its end",
        )


def _require_space(found: Engine, client: Client, resolved: Resolved) -> None:
    if found.root is None:
        return
    try:
        free = shutil.disk_usage(found.root).free
    except OSError:
        return  # the engine's directory is for root only
    if free < resolved.space.build * _MEGABYTE:
        raise NoSpaceError(
            f"the build needs {human_size(resolved.space.build * _MEGABYTE)} where the engine keeps images; {human_size(free)} are free",
            place=str(found.root),
            next_step=client.room,
        )


def _mirror(resolved: Resolved) -> dict[str, str]:
    base = resolved.base
    return (
        {"mirror": host.debian_mirror(base.release), "release": base.release}
        if isinstance(base, Debootstrap)
        else {}
    )


def _private(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _context(place: Workspace, wheels: Path | None) -> Path:
    """What is handed to the engine besides the Dockerfile: wheels where there are some."""
    context = _private(place.scratch / "context")
    if wheels:
        shutil.copytree(wheels, context / WHEELS, copy_function=_linked)
    else:
        (context / WHEELS).mkdir()
    return context


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True)
class Build:
    """One build, for which the client may have to run several times."""

    name: str
    engine: Engine
    client: Client
    place: Workspace
    follower: Follower
    details: dict[str, str]
    reader: Log
    kept: list[str] = field(default_factory=list)

    def image(self, dockerfile: str, order: BuildRequest) -> str:
        """Let the engine build what is ordered; the id of the image."""
        while self.client.apart and (stage := docker_stages.first_mounted_stage(dockerfile)):
            image = self._run(dockerfile, replace(order, target=stage))
            dockerfile = docker_stages.replace_stage(
                dockerfile, stage, image.removeprefix("sha256:")
            )
        return self._run(dockerfile, order)

    def _run(self, dockerfile: str, order: BuildRequest) -> str:
        (order.context / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        order.result.unlink(missing_ok=True)
        command, environment = (
            self.client.command(self.engine, order),
            self.client.environment(self.engine, order),
        )
        code = self.follower.follow(
            command, environment, self.place, on_line=self._take, mark=self.client.mark
        )
        if code == 0 and order.result.exists():
            return order.result.read_text().strip()
        raise self.error(code)

    def _take(self, line: str) -> None:
        reader = self.reader
        event = reader.feed(line.rstrip("\n"))
        if event:
            self.details[reader.step] = reader.detail
        if event == "kept":
            self.kept.append(reader.step)
            self.follower.kept(reader.step)
        elif event:
            self.follower.begin(reader.step)

    def error(self, code: int) -> ToolkitError:
        """What to raise: the client ended with ``code``."""
        reader, said = self.reader, self.follower.reader
        said.step, said.command, said.tail = reader.step or "base", reader.command, reader.tail
        said.no_space = said.no_space or reader.no_space
        error = self.follower.error(code if reader.code is None else reader.code)
        if said.no_space or not (reader.gone or not _answers(self.engine)):
            return error
        return BuildError(
            f"the {self.engine.name} engine stopped in the step {said.step} of {self.name}; nothing of the image was kept",
            place=self.engine.address,
            details=error.details,
            next_step=f"start it, and build again: it goes on after the last step that was whole; the log: {self.follower.log}",
        )


def _answers(found: Engine) -> bool:
    from docker.errors import DockerException

    try:
        return bool(found.client.ping())
    except (DockerException, OSError):
        return False


def engine_image_name(recipe: str) -> str:
    """What the engine calls the image of a recipe: its grammar has no capitals and no plus sign."""
    return "toolkit/" + re.sub(
        r"[^a-z0-9]+(?=$)|^[^a-z0-9]+", "", re.sub(r"[^a-z0-9._-]|[._-]{2,}", "-", recipe.lower())
    )


def _name(found: Engine, image: str, recipe: str) -> None:
    from docker.errors import DockerException

    try:
        found.client.images.get(image).tag(found.own(engine_image_name(recipe)), "latest")
    except (DockerException, OSError) as error:
        raise CommandFailedError(
            f"{found} did not give the image its name: {error}", place=found.address
        ) from None
