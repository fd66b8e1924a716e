"""Build by Docker or podman: a Dockerfile becomes an image in the engine, and that a SIF.

The docker SDK is the door to the engine: it finds it, brings the base there, names and saves
images. It does not build: it speaks only the protocol of the engine's old builder, which can mount
no secrets into a step (``host_secrets``). So the build itself goes through the engine's own client
(``clients``), which is given files by name and no secret as an argument.

The image gets its name, ``toolkit/<recipe>``, when its SIF has passed the checks; a build that
fails or is stopped names nothing.
"""

from __future__ import annotations

import os
import re
import shutil
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
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.docker.base import prepare_base
from toolkit.images.builder.docker.clients import (
    BuildRequest,
    Client,
    end_marked,
    find_client,
    first_mounted_stage,
    replace_stage,
)
from toolkit.images.builder.docker.convert import convert
from toolkit.images.builder.docker.host_secrets import WHEELS, add_mounts, mount_host_config
from toolkit.images.builder.docker.log import BuildKitLog, PodmanLog
from toolkit.images.builder.follow import LAST_STEPS, BuildContext, Follower
from toolkit.images.builder.remote_base import RemoteBase
from toolkit.images.host import host_config
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.bases import Debootstrap
from toolkit.images.recipe.resolve import Resolved
from toolkit.runtimes.docker import Engine, find_engine
from toolkit.units import human_size

_MEGABYTE = 10**6


def build(
    context: BuildContext,
    resolved: Resolved,
    definition: str,
    *,
    base: RemoteBase | None = None,
    wheels: Path | None = None,
    fresh: bool = False,
) -> BuildOutcome:
    """Build the image by Docker, and the context's ``place.sif`` from it.

    Args:
        context: The place and the reports of this build.
        resolved: The recipe.
        definition: Its Dockerfile.
        base: The image of a base from a registry or an archive.
        wheels: A directory of wheels that were compiled before.
        fresh: Do not use the engine's cache.

    Raises:
        BuildError: A step or a check failed, or the engine ended; names the step, its command, and
            the end of the log.
        NoSpaceError: A disk was full.
        NeedsInstallError, ForbiddenError: The engine, its client or Apptainer is missing, or this
            user may not use it.
        ConfigError, UnknownImageError, CommandFailedError: The base cannot be prepared.
    """
    if shell.find_apptainer() is None:  # before the engine works in vain
        raise NeedsInstallError(
            "Apptainer, which turns Docker's image into a SIF, is not installed here",
            next_step="toolkit setup",
        )
    engine, place = find_engine(), context.place
    client = find_client(engine)
    _require_space(engine, client, resolved)
    if client.mark and not engine.is_ours:
        context.progress.say(
            "warning",
            f"{engine} runs elsewhere or as another user: if this build is stopped, its current"
            " step goes on to its end",
        )
    config = host_config.collect_host_config()
    directory = _make_private(place.output / "host")
    with mount_host_config(
        config, directory, variables=client.variables(), **_mirror(resolved)
    ) as mounts:
        details = {"base": resolved.base.output().detail, "convert": "a SIF of it", **LAST_STEPS}
        secrets = (*mounts.masked, *host_config.collect_secrets(config))
        follower = context.follower(details, secrets)
        follower.begin("base")
        name = prepare_base(engine, resolved.base, base, place, follower)
        run = EngineBuild(resolved.name, engine, client, place, follower, details, client.log())
        request = BuildRequest(
            _make_context(place, wheels),
            str(engine.client.images.get(name).id) if client.takes_ids else name,
            place.output / "image.id",
            mounts,
            fresh=fresh,
        )
        image = run.build_image(add_mounts(definition, client.form), request)
    follower.begin("convert")
    packer = convert(engine, image, resolved, place, follower)
    follower.end()
    _name_image(engine, image, resolved.name)
    builder = f"{engine}, {packer}"
    return BuildOutcome(follower.reader.results, builder, follower.seconds, tuple(run.cached))


def _require_space(engine: Engine, client: Client, resolved: Resolved) -> None:
    if engine.root is None:
        return
    try:
        free = shutil.disk_usage(engine.root).free
    except OSError:
        return  # only root may enter the engine's directory
    if free < resolved.space.build * _MEGABYTE:
        needed = human_size(resolved.space.build * _MEGABYTE)
        raise NoSpaceError(
            f"the build needs {needed} in the engine's directory; {human_size(free)} are free",
            place=str(engine.root),
            next_step=client.space_commands,
        )


def _mirror(resolved: Resolved) -> dict[str, str]:
    base = resolved.base
    if not isinstance(base, Debootstrap):
        return {}
    return {"mirror": host_config.debian_mirror(base.release), "release": base.release}


def _make_private(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _make_context(place: Workspace, wheels: Path | None) -> Path:
    """Make the directory that is sent to the engine, with the wheels if there are any."""
    context = _make_private(place.scratch / "context")
    if wheels:
        shutil.copytree(wheels, context / WHEELS, copy_function=_link_or_copy)
    else:
        (context / WHEELS).mkdir()
    return context


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True)
class EngineBuild:
    """One build, for which the client may have to run several times.

    Attributes:
        name: The recipe's name.
        details: What each step does, for people; completed as the log says it.
        cached: The steps that came from the engine's cache.
    """

    name: str
    engine: Engine
    client: Client
    place: Workspace
    follower: Follower
    details: dict[str, str]
    log: BuildKitLog | PodmanLog
    cached: list[str] = field(default_factory=list)

    def build_image(self, dockerfile: str, request: BuildRequest) -> str:
        """Let the engine build the request; return the image's id."""
        while self.client.stages_apart and (stage := first_mounted_stage(dockerfile)):
            image = self._run(dockerfile, replace(request, target=stage))
            dockerfile = replace_stage(dockerfile, stage, image.removeprefix("sha256:"))
        return self._run(dockerfile, request)

    def _run(self, dockerfile: str, request: BuildRequest) -> str:
        (request.context / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        request.result.unlink(missing_ok=True)
        try:
            code = self.follower.follow(
                self.client.command(self.engine, request),
                self.client.environment(self.engine, request),
                self.place,
                on_line=self._take_line,
            )
        except BaseException:
            end_marked(self.client.mark)
            raise
        if code == 0 and request.result.exists():
            return request.result.read_text().strip()
        raise self._error(code)

    def _take_line(self, line: str) -> None:
        log = self.log
        event = log.feed(line.rstrip("\n"))
        if event:
            self.details[log.step] = log.shown.detail
        if event == "kept":
            self.cached.append(log.step)
            self.follower.reuse(log.step)
        elif event:
            self.follower.begin(log.step)

    def _error(self, code: int) -> ToolkitError:
        """Return the error to raise after the client ended with ``code``."""
        log, reader = self.log, self.follower.reader
        reader.step, reader.command, reader.tail = (
            log.step or "base",
            log.shown.command,
            log.shown.tail,
        )
        reader.no_space = reader.no_space or log.no_space
        error = self.follower.error(code if log.code is None else log.code)
        if reader.no_space or not (log.gone or not _answers(self.engine)):
            return error
        return BuildError(
            f"the {self.engine.name} engine stopped in the step {reader.step} of {self.name};"
            " there is no image",
            place=self.engine.address,
            details=error.details,
            next_step="start it, and build again: it continues after the last complete step;"
            f" the log: {self.follower.log}",
        )


def _answers(engine: Engine) -> bool:
    from docker.errors import DockerException

    try:
        return bool(engine.client.ping())
    except (DockerException, OSError):
        return False


def engine_image_name(recipe: str) -> str:
    """Return the engine's name for a recipe's image; its grammar has no capitals and no plus."""
    name = re.sub(r"[^a-z0-9._-]|[._-]{2,}", "-", recipe.lower())
    return "toolkit/" + re.sub(r"[^a-z0-9]+(?=$)|^[^a-z0-9]+", "", name)


def _name_image(engine: Engine, image: str, recipe: str) -> None:
    from docker.errors import DockerException

    try:
        engine.client.images.get(image).tag(engine.own(engine_image_name(recipe)), "latest")
    except (DockerException, OSError) as error:
        raise CommandFailedError(
            f"{engine} could not name the image: {error}", place=engine.address
        ) from None
