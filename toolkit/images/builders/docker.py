"""Building by Docker: a Dockerfile becomes an image in the engine, and that a SIF.

The docker SDK is the door to the engine: it finds it, brings the base there, names and saves images. It does not build: it speaks with
the engine's old builder only, which can lend nothing to a step (``docker_lend``), and has no session for BuildKit's secrets. So the build
itself goes through Docker's own client, which is given files by name and nothing secret in an argument.

The image gets its name, ``toolkit/<recipe>``, when its SIF has passed the checks; a build that fails or is stopped names nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError, CommandFailedError, NeedsInstallError, NoSpaceError, ToolkitError
from toolkit.images import host
from toolkit.images.bases import Debootstrap
from toolkit.images.builders import docker_base
from toolkit.images.builders.apptainer import Outcome
from toolkit.images.builders.convert import convert
from toolkit.images.builders.docker_engine import Builder, Engine, builder, engine
from toolkit.images.builders.docker_lend import WHEELS, Lending, lending, lent
from toolkit.images.builders.docker_log import Reader
from toolkit.images.builders.fetched import Fetched
from toolkit.images.builders.follow import Follower
from toolkit.images.builders.workspace import Workspace
from toolkit.images.loan import secrets
from toolkit.images.recipes import Resolved
from toolkit.progress import Progress
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
    base: Fetched | None = None,
    wheels: Path | None = None,
    fresh: bool = False,
) -> Outcome:
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
    found, client = engine(), builder()
    if found.is_podman:
        raise _podman(found, resolved.name)
    _require_space(found, resolved)
    loan = host.loan()
    with lending(loan, _private(place.output / "lent"), **_mirror(resolved)) as lends:
        details = {"base": resolved.base.detail(), "convert": "a SIF of it", "checks": "the image proves itself", "pack": "into one file"}
        hidden = (*lends.hidden, *secrets((*loan.files.values(), *host.proxies().values())))
        follower = Follower(resolved.name, details, log, progress, expected=expected, secret=hidden)
        follower.begin("base")
        name = docker_base.provide(found, resolved.base, base, place, follower)
        context = _context(place, definition, wheels)
        run = _Build(resolved.name, found, client, place, follower, details)
        image = run.image(name, lends, context, fresh=fresh)
    follower.begin("convert")
    packer = convert(found, image, resolved.name, place, follower)
    follower.end()
    _name(found, image, resolved.name)
    return Outcome(follower.reader.results, f"{found}, {packer}", follower.seconds, tuple(run.kept))


def _require_apptainer() -> None:
    """Before the engine works for nothing."""
    if not (shell.which("apptainer") or shell.which("singularity")):
        raise NeedsInstallError("Apptainer is not installed here, which makes a SIF of what Docker built", next_step="toolkit setup")


def _podman(found: Engine, name: str) -> BuildError:
    return BuildError(
        f"what answers is {found}, whose socket has no BuildKit: it can lend a build nothing without keeping it",
        place=found.address,
        next_step=f"set DOCKER_HOST to a Docker engine; or --engine apptainer; or, with nothing lent: podman build -f {name}.Dockerfile",
    )


def _require_space(found: Engine, resolved: Resolved) -> None:
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
            next_step="docker system df; docker builder prune",
        )


def _mirror(resolved: Resolved) -> dict[str, str]:
    base = resolved.base
    return {"mirror": host.debian_mirror(base.release), "release": base.release} if isinstance(base, Debootstrap) else {}


def _private(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _context(place: Workspace, definition: str, wheels: Path | None) -> Path:
    """What is handed to the engine: the Dockerfile, and wheels where there are some."""
    context = _private(place.scratch / "context")
    if wheels:
        shutil.copytree(wheels, context / WHEELS, copy_function=_linked)
    else:
        (context / WHEELS).mkdir()
    (context / "Dockerfile").write_text(lent(definition), encoding="utf-8")
    return context


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True)
class _Build:
    """One run of Docker's client."""

    name: str
    engine: Engine
    client: Builder
    place: Workspace
    follower: Follower
    details: dict[str, str]
    kept: list[str] = field(default_factory=list)

    def image(self, base: str, lends: Lending, context: Path, *, fresh: bool) -> str:
        """Let the engine build on ``base``; the id of the image."""
        result = self.place.output / "image.id"
        proxies = [word for name in host.proxies() for word in ("--build-arg", name)]  # the values are taken from the environment
        command = [self.client.program, "build", "--progress=plain", "--network=host", "--iidfile", str(result)]
        command += ["--build-arg", f"BASE={base}", *proxies, *(("--no-cache",) if fresh else ()), *lends.arguments(), str(context)]
        reader = Reader()

        def take(line: str) -> None:
            event = reader.feed(line.rstrip("\n"))
            if event:
                self.details[reader.step] = reader.detail
            if event == "kept":
                self.kept.append(reader.step)
                self.follower.kept(reader.step)
            elif event:
                self.follower.begin(reader.step)

        code = self.follower.follow(command, _environment(self.engine, lends), self.place, on_line=take)
        if code == 0 and result.exists():
            return result.read_text().strip()
        raise self.error(reader, code)

    def error(self, reader: Reader, code: int) -> ToolkitError:
        """What to raise: the client ended with ``code``."""
        said = self.follower.reader
        said.step, said.command, said.tail = reader.step or "base", reader.command, reader.tail
        said.no_space = said.no_space or reader.no_space
        error = self.follower.error(code if reader.code is None else reader.code)
        if said.no_space or not (reader.gone or not _answers(self.engine)):
            return error
        return BuildError(
            f"the Docker engine stopped in the step {said.step} of {self.name}; nothing of the image was kept",
            place=self.engine.address,
            details=error.details,
            next_step=f"start it, and build again: it goes on after the last step that was whole; the log: {self.follower.log}",
        )


def _environment(found: Engine, lends: Lending) -> dict[str, str]:
    """Of the client: the user's, for contexts, certificates and plugins, but for what could send the build to another engine."""
    proxies = host.proxies()
    if lends.hidden:  # what is served here is not fetched through a proxy
        for name in [name for name in ("no_proxy", "NO_PROXY") if name in proxies] or ["no_proxy"]:
            proxies[name] = ",".join(filter(None, (proxies.get(name, ""), "127.0.0.1")))
    kept = {
        name: os.environ[name] for name in ("HOME", "PATH", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH") if name in os.environ
    }
    settings = {"DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "LC_ALL": "C.UTF-8"}
    return {**kept, **proxies, **settings, "DOCKER_HOST": found.address}


def _answers(found: Engine) -> bool:
    from docker.errors import DockerException

    try:
        return bool(found.client.ping())
    except (DockerException, OSError):
        return False


def image_name(recipe: str) -> str:
    """What the engine calls the image of a recipe: its grammar has no capitals and no plus sign."""
    return "toolkit/" + re.sub(r"[^a-z0-9]+(?=$)|^[^a-z0-9]+", "", re.sub(r"[^a-z0-9._-]|[._-]{2,}", "-", recipe.lower()))


def _name(found: Engine, image: str, recipe: str) -> None:
    from docker.errors import DockerException

    try:
        found.client.images.get(image).tag(image_name(recipe), "latest")
    except (DockerException, OSError) as error:
        raise CommandFailedError(f"{found} did not give the image its name: {error}", place=found.address) from None
