"""Build by Docker or podman: a Dockerfile becomes an image in the engine, and that a SIF.

The docker SDK is the door to the engine: it finds it, brings the base there, names and saves
images. It does not build: it speaks only the protocol of the engine's old builder, which can mount
no secrets into a step. So the build itself goes through the engine's own client (``clients``),
which is given files by name and no secret as an argument. skopeo converts between the formats of
archives.

The image gets its name, ``toolkit/<recipe>``, when its SIF has passed the checks; a build that
fails or is stopped names nothing.
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from toolkit import shell
from toolkit.errors import (
    NO_SPACE,
    BuildError,
    CommandFailedError,
    NeedsInstallError,
    NoSpaceError,
)
from toolkit.images.builder.apptainer import apptainer
from toolkit.images.builder.apptainer.apptainer import BuildOutcome
from toolkit.images.builder.docker.base import copy_archive, prepare_base
from toolkit.images.builder.docker.clients import Client, ClientLog, end_marked, find_client
from toolkit.images.builder.docker.host_files import WHEELS, add_mounts, host_files
from toolkit.images.builder.follow import LAST_STEPS, BuildContext, Follower
from toolkit.images.builder.remote_base import RemoteBase
from toolkit.images.host import host_config
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.bases import Base, BaseOutput, Debootstrap
from toolkit.images.recipe.block import CHECKS
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.quoting import format_exports
from toolkit.images.registry.registry import require_skopeo
from toolkit.runtimes.docker import Engine, find_engine
from toolkit.units import human_size

_MEGABYTE = 10**6
_LAYOUT = "image"  # the SIF names it, so it is no path of this machine


def build(
    context: BuildContext,
    resolved: Plan,
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
        NeedsInstallError, ForbiddenError: The engine, its client, skopeo or Apptainer is missing,
            or this user may not use it.
        ConfigError, UnknownImageError, CommandFailedError: The base cannot be prepared.
    """
    engine, client = _find_programs(context, resolved)
    place, word = context.place, secrets.token_urlsafe(18)
    config = host_config.collect_host_config()
    details = {"base": resolved.base.output().detail, "convert": "a SIF of it", **LAST_STEPS}
    follower = context.follower(details, (word, *host_config.collect_secrets(config)))
    follower.begin("base")
    name = prepare_base(engine, resolved.base, base, place, follower)
    log = ClientLog(follower, details)
    directory = _make_context(place, add_mounts(definition, tmpfs=not client.mark), wheels)
    private = place.output / "host"
    private.mkdir(mode=0o700)
    with host_files(config, private, word, **_mirror(resolved.base)) as files:
        result = place.output / "image.id"
        # podman's cache does not see what a step takes from the stage that compiles.
        fresh = fresh or bool(client.mark and resolved.build)
        command = client.command(directory, name, files, result, fresh=fresh)
        image = run_client(client, command, result, context, follower, log)
    follower.begin("convert")
    packer = _convert(engine, image, resolved, place, follower)
    follower.end()
    with _engine_errors(engine, "name the image"):
        tag = engine.own(engine_image_name(resolved.name))
        engine.client.images.get(image).tag(tag, "latest")
    builder = f"{engine}, {packer}"
    return BuildOutcome(follower.reader.results, builder, follower.seconds, tuple(log.cached))


def _find_programs(context: BuildContext, resolved: Plan) -> tuple[Engine, Client]:
    """Find everything that is needed, before the engine works in vain.

    Raises:
        NeedsInstallError, ForbiddenError: A program is missing, or this user may not use it.
        NoSpaceError: The engine's disk is too full.
    """
    if shell.find_apptainer() is None:
        raise NeedsInstallError(
            "Apptainer, which turns Docker's image into a SIF, is not installed here",
            next_step="toolkit setup",
        )
    require_skopeo()
    engine = find_engine()
    client = find_client(engine)
    _require_space(engine, resolved)
    if client.mark and not engine.is_ours:
        context.progress.say(
            "warning",
            f"{engine} runs elsewhere or as another user: if this build is stopped, its current"
            " step goes on to its end",
        )
    return engine, client


def _require_space(engine: Engine, resolved: Plan) -> None:
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
            next_step="podman system df; podman image prune"
            if engine.is_podman
            else "docker system df; docker builder prune",
        )


def _mirror(base: Base) -> dict[str, str]:
    if not isinstance(base, Debootstrap):
        return {}
    return {"mirror": host_config.debian_mirror(base.release), "release": base.release}


def _make_context(place: Workspace, dockerfile: str, wheels: Path | None) -> Path:
    """Make the directory that is sent to the engine, with the wheels if there are any."""
    context = place.scratch / "context"
    context.mkdir(mode=0o700)
    (context / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    if wheels:
        shutil.copytree(wheels, context / WHEELS)
    else:
        (context / WHEELS).mkdir()
    return context


def run_client(
    client: Client,
    command: list[str],
    result: Path,
    context: BuildContext,
    follower: Follower,
    log: ClientLog,
) -> str:
    """Let the engine build; return the image's id."""
    code = 1
    try:
        code = follower.follow(command, client.environment(), on_line=log.take)
    finally:
        if code:
            end_marked(client.mark)
    if code == 0 and result.exists():
        return result.read_text().strip()
    follower.reader = log.reader
    error = follower.error(code if log.code is None else log.code)
    if log.reader.no_space or log.code is not None or _answers(client.engine):
        raise error
    raise BuildError(
        f"the {client.engine.name} engine stopped in the step {log.reader.step} of"
        f" {context.name}; there is no image",
        place=client.engine.address,
        details=error.details,
        next_step="start it, and build again: it continues after the last complete step;"
        f" the log: {follower.log}",
    )


def _answers(engine: Engine) -> bool:
    """Return whether the engine answers, also a while after the client has ended."""
    from docker.errors import DockerException

    for _ in range(6):
        try:
            engine.client.ping()
        except (DockerException, OSError):
            return False
        time.sleep(0.5)
    return True


@contextmanager
def _engine_errors(engine: Engine, action: str) -> Iterator[None]:
    """Turn errors of the SDK into those of the toolkit.

    Raises:
        NoSpaceError: The disk is full.
        CommandFailedError: The engine could not do it.
    """
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:  # a RequestException is an OSError
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise NoSpaceError(f"{engine} could not {action}: the disk is full") from None
        raise CommandFailedError(
            f"{engine} could not {action}: {str(error)[:300]}",
            place=engine.address,
            next_step="check the engine's own log",
        ) from None


def engine_image_name(recipe: str) -> str:
    """Return the engine's name for a recipe's image; its grammar has no capitals and no plus."""
    name = re.sub(r"[^a-z0-9._-]|[._-]{2,}", "-", recipe.lower())
    return "toolkit/" + re.sub(r"[^a-z0-9]+(?=$)|^[^a-z0-9]+", "", name)


class Layout(Base, frozen=True, kw_only=True):
    """The base of a conversion: the engine's image in OCI's layout. No recipe can name it."""

    def output(self) -> BaseOutput:
        """Return what the definition of the conversion gets from this base."""
        return BaseOutput(
            detail="the image that the engine built",
            header=("Bootstrap: oci", f"From: {_LAYOUT}"),
        )


def _convert(
    engine: Engine, image: str, resolved: Plan, place: Workspace, follower: Follower
) -> str:
    """Make ``place.sif`` of an engine's image and run its checks; return the program that did it.

    Apptainer reads `docker save`'s archive as well, but compresses every layer by gzip first, on
    one core, and then decompresses it. In an OCI layout it takes layers uncompressed.
    """
    saved, layout = place.scratch / "saved.tar", place.scratch / _LAYOUT
    with _engine_errors(engine, "save the image"), saved.open("wb") as stream:
        for chunk in engine.client.images.get(image).save(chunk_size=1 << 20):
            stream.write(chunk)
    copy_archive("docker-archive:saved.tar", f"oci:{_LAYOUT}", place, follower)
    saved.unlink()
    text = conversion(resolved.name, engine.name, resolved.environment)
    try:
        return apptainer.pack_archive(Layout(), text, place, follower, place.scratch)
    finally:
        shutil.rmtree(layout, ignore_errors=True)


def conversion(name: str, engine: str, environment: Mapping[str, str]) -> str:
    r"""Return the definition for what an image of Docker's has no place for.

    Environment and labels are copied by Apptainer, except for values with a dollar sign: Apptainer
    1.4 writes them as ``"${A:-"\$X"}"``, which its shell reads as a backslash and the value of X.
    """
    dollars = {variable: value for variable, value in environment.items() if "$" in value}
    exported = "\n".join(f"    export {setting}" for setting in format_exports(dollars, {}))
    return (
        f"# {name}: built by {engine}, and put into a SIF by toolkit.\n"
        + "\n".join(Layout().output().header)
        + (f"\n\n%environment\n{exported}\n" if dollars else "")
        + f'\n\n%runscript\n    exec "$@"\n\n%test\n    exec sh {CHECKS}/run\n'
    )
