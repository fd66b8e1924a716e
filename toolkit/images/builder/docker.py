"""Build by Docker: a Dockerfile becomes an image in the engine, and that a SIF.

The docker SDK is the door to the engine: it finds it, brings the base there, names and saves
images. It does not build: it speaks only the protocol of the engine's old builder, which can mount
no secrets into a step. So the build itself goes through the engine's own client, which is given
files by name and no secret as an argument. skopeo converts between the formats of archives.

podman builds nothing here: who may run it may build by Apptainer, which needs the same subordinate
ids, and its service goes on with a step when its client is gone.

The host configuration is mounted into the steps, and none of it is stored. With an engine of 20.10:

- A build argument stays in the image's history.
- A copied file stays in its layer, even if a later layer removes it.
- A stage of its own that holds the files, and is mounted, stays in the engine's cache with its
  passwords, and changes the key of a step whenever one of them changes.

So files become *secrets* of the build: mounted for one step only, in memory, in no layer, no
history and no cache key. Secrets are files: directories of packages on this machine are not seen.
The committed Dockerfile has none of this: ``add_mounts`` adds it.

The image gets its name, ``toolkit/<recipe>``, when its SIF has passed the checks; a build that
fails or is stopped names nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit import shell
from toolkit.errors import (
    NO_SPACE,
    BuildError,
    CommandFailedError,
    ConfigError,
    NeedsInstallError,
    NoSpaceError,
)
from toolkit.images.builder.apptainer import apptainer
from toolkit.images.builder.apptainer.apptainer import BuildOutcome, cached_base
from toolkit.images.builder.apptainer.compose import open_squashfs
from toolkit.images.builder.apptainer.programs import SYSTEM_PATH
from toolkit.images.builder.follow import LAST_STEPS, Follower
from toolkit.images.builder.remote_base import BuildTask, RemoteBase
from toolkit.images.host import host_config
from toolkit.images.host.host_config import CERTIFICATES, ROOT, HostConfig
from toolkit.images.host.kernel import namespace_command
from toolkit.images.host.privilege import namespace_ids
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, Debootstrap
from toolkit.images.recipe.block import CHECKS
from toolkit.images.recipe.plan import STEP, Plan
from toolkit.images.recipe.quoting import quote_word
from toolkit.images.registry.registry import Source, require_skopeo, write_login
from toolkit.images.store.cache import Cache
from toolkit.quoting import shell as quoted
from toolkit.runtimes.docker import Engine, find_engine

_LAYOUT = "image"  # the SIF names it, so it is no path of this machine
_VARIABLES = ("HOME", "PATH", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
# What Apptainer adds to a base, and adds again when the engine's image becomes a SIF.
_METADATA = (".singularity.d", ".exec", ".run", ".shell", ".test", "environment", "singularity")
_NOT_IMPORTED = (*_METADATA, "dev/*")  # an engine brings devices of its own
_UNPACK = """
offset=$1 image=$2 directory=$3 archive=$4
shift 4
unsquashfs -quiet -no-progress -offset "$offset" -dest "$directory" "$image" >/dev/null
tar -C "$directory" --numeric-owner --sort=name "$@" -cf "$archive" .
"""
# Of BuildKit (--progress=plain): an instruction that is a step of the recipe, and what it prints.
_RUN = re.compile(rf"#\d+ \[[^\]]+\] RUN .*?{re.escape(STEP)}([^ :]+): ")
_OUTPUT = re.compile(r"#\d+ \d+\.\d+ ?(.*)")

_SOURCES, _EXPORTS = "sources.list", "variables"
# Every step names all of them, mounted or not, so that a step's key does not depend on them.
_SECRETS = ("apt.conf", CERTIFICATES, "pip.conf", _SOURCES, _EXPORTS)
# BuildKit leaves the empty files in the image that it mounts secrets on, but for the tmpfs.
_MOUNTS = " ".join(
    (
        f"--mount=type=tmpfs,target={ROOT}",
        *(f"--mount=type=secret,id={name},target={ROOT}/{name},mode=0444" for name in _SECRETS),
    )
)
# Each step writes to one stream only, so that commands and their output keep their order.
_FIRST = f"[ ! -f {ROOT}/{_EXPORTS} ] || . {ROOT}/{_EXPORTS}; exec 2>&1; "
# With its continuation: lines that end with a backslash, and comments among them.
_STEP_RUN = re.compile(
    r"^RUN (?P<flags>(?:--\S+\s+(?:\\\n\s*)?)*)(?P<body>(?:.*\\\n|[ \t]*#.*\n)*.*)", re.MULTILINE
)


def build(task: BuildTask) -> BuildOutcome:
    """Build the image by Docker, and the task's ``place.sif`` from it.

    If the task is fresh, the engine's cache is not used.

    Raises:
        BuildError: A step failed, or the engine ended; has the end of the log.
        NoSpaceError: A disk was full.
        NeedsInstallError: Docker, skopeo or Apptainer is missing.
        ForbiddenError: This user may not talk to the engine.
        ConfigError, CommandFailedError: The base cannot be prepared.
    """
    shell.require_apptainer()  # before the engine works in vain
    require_skopeo()
    place, follower, plan = task.place, task.follower, task.plan
    engine, client = find_builder()
    config = host_config.collect_host_config()
    follower.details = {
        "base": plan.base.output().detail,
        "convert": "a SIF of it",
        **{step.name: step.detail for step in (*plan.common, *plan.build, *plan.final)},
        **LAST_STEPS,
    }
    follower.secrets = host_config.collect_secrets(config)
    follower.begin("base")
    with _engine_errors(engine, "take the base"):
        name = _bring_base(engine, client, task)
    directory = _make_context(place, add_mounts(library.render(plan, "docker")), plan)
    private = place.output / "host"
    private.mkdir(mode=0o700)
    result = place.output / "image.id"
    command = [client, "build", "--progress=plain", "--network=host", "--iidfile", str(result)]
    command += ["--build-arg", f"BASE={name}", *(["--no-cache"] if task.fresh else [])]
    for secret, path in sorted(write_secrets(config, private, **_mirror(plan.base)).items()):
        command += ["--secret", f"id={secret},src={path}"]

    def take(line: str) -> None:
        """Take a line of the client, without BuildKit's numbers."""
        if (run := _RUN.match(line)) and run[1] in follower.details:
            follower.begin(run[1])
        elif output := _OUTPUT.match(line):
            follower.take_line(output[1])
        else:
            follower.take_line(line)

    words = [*command, str(directory)]
    code = follower.follow(words, client_environment(engine), on_line=take)
    if code != 0:
        raise follower.error(code)
    image = result.read_text().strip()
    follower.begin("convert")
    packer = _convert(engine, image, plan, place, follower)

    def name_image() -> None:
        with _engine_errors(engine, "name the image"):
            engine.client.images.get(image).tag(engine_image_name(plan.name), "latest")

    return BuildOutcome(f"{engine}, {packer}", keep=name_image)


def find_builder() -> tuple[Engine, str]:
    """Find the engine, and the path of its client.

    Raises:
        NeedsInstallError: No engine of Docker's answers, or its client is missing.
        ForbiddenError: This user may not talk to it.
    """
    engine, client = find_engine(), shell.which("docker")
    if engine.is_podman:
        raise NeedsInstallError(
            "the engine is podman, by which no image is built",
            place=engine.address,
            next_step="build by Apptainer, which who may run podman may run as well, or set"
            " DOCKER_HOST to an engine of Docker's",
        )
    if client is None:
        raise NeedsInstallError(
            "the client of Docker is not installed here",
            next_step="install docker and its plugin buildx (Debian: apt-get install docker.io)",
        )
    return engine, client


def add_mounts(dockerfile: str) -> str:
    """Return a Dockerfile whose steps see the host configuration.

    The text has one ``RUN`` at the beginning of a line for each step.
    """
    return _STEP_RUN.sub(rf"RUN {_MOUNTS} \g<flags>{_FIRST}\g<body>", dockerfile)


def write_secrets(
    config: HostConfig, directory: Path, *, mirror: str = "", release: str = ""
) -> dict[str, Path]:
    """Write the files of the secrets; return them by their ids.

    Args:
        config: The host configuration.
        directory: An empty directory that only its owner can enter.
        mirror: A mirror of Debian, for a base whose own list of sources is empty.
        release: The code name to use at the mirror.
    """
    files = {bind.target: Path(bind.source) for bind in config.binds}
    texts = dict(config.files)
    if mirror:
        texts[_SOURCES] = f"deb {mirror} {release} main\n"
        option = f'Dir::Etc::sourcelist "{ROOT}/{_SOURCES}";\n'
        texts["apt.conf"] = texts.get("apt.conf", "") + option
    if proxies := host_config.proxies():
        exports = (f"export {name}={quoted(value)}\n" for name, value in proxies.items())
        texts[_EXPORTS] = "".join(exports)
    for name, text in texts.items():
        files[name] = directory / name
        files[name].write_text(text, encoding="utf-8")
    return {name: path for name, path in files.items() if name in _SECRETS and path.is_file()}


def _mirror(base: Base) -> dict[str, str]:
    if not isinstance(base, Debootstrap):
        return {}
    return {"mirror": host_config.debian_mirror(base.release), "release": base.release}


def _make_context(place: Workspace, dockerfile: str, plan: Plan) -> Path:
    context = place.scratch / "context"
    context.mkdir(mode=0o700)
    (context / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    for source in filter(None, (step.source for step in plan.steps)):
        (context / source.shown).parent.mkdir(parents=True, exist_ok=True)
        if source.mode:
            shutil.copy2(source.path, context / source.shown)
        else:
            shutil.copytree(source.path, context / source.shown, symlinks=True)
    return context


def client_environment(engine: Engine) -> dict[str, str]:
    """Return the client's whole environment, without settings that choose another engine."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {
        **variables,
        "LC_ALL": "C.UTF-8",
        "DOCKER_BUILDKIT": "1",
        "BUILDX_BUILDER": "default",
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        "DOCKER_HOST": engine.address,
    }


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


def _bring_base(engine: Engine, client: str, task: BuildTask) -> str:
    """Bring the base into the engine, so that the build needs no registry; return its name there.

    Raises:
        ConfigError: Docker cannot use this kind of base.
        BuildError, NeedsInstallError, ForbiddenError: The base could not be made, loaded or pulled.
    """
    base, remote, place, follower = task.plan.base, task.base, task.place, task.follower
    if isinstance(base, Debootstrap):
        return _import_debian(engine, task.plan, place, follower)
    if remote and remote.archive:
        return _load_archive(engine, remote, place, follower)
    if remote and remote.source:
        if not _has_image(engine, remote.source.place.pinned):
            _pull(engine, client, remote.source, place, follower)
        return remote.source.place.pinned
    raise ConfigError(
        f"Docker cannot use this kind of base: {base.output().detail}",
        place="the recipe's [base]",
        next_step="build it by Apptainer, without --engine",
    )


def _import_debian(engine: Engine, plan: Plan, place: Workspace, follower: Follower) -> str:
    """Import the Debian that Apptainer makes, once for each; the engine keeps it."""
    with Cache(place.images).used():
        entry = cached_base(plan, place, follower)
        name = f"toolkit/debian:{entry.note.digest[:12]}"
        if _has_image(engine, name):
            return name
        tree, offset = place.scratch / "debian.tar", open_squashfs(entry.path)[0]
        words = (str(offset), entry.path, str(place.scratch / "debian"), str(tree))
        excluded = [f"--exclude=./{file}" for file in _NOT_IMPORTED]
        code = follower.follow(
            [*namespace_command(namespace_ids()), "sh", "-ec", _UNPACK, "sh", *words, *excluded],
            {"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"},
        )
    if code != 0:
        raise follower.error(code)
    repository, _, tag = name.partition(":")
    settings = [f"ENV PATH={SYSTEM_PATH}", 'CMD ["/bin/bash"]']
    engine.client.api.import_image_from_file(
        str(tree), repository=repository, tag=tag, changes=settings
    )
    tree.unlink()
    return name


def _pull(
    engine: Engine, client: str, source: Source, place: Workspace, follower: Follower
) -> None:
    """Pull a base from a registry by the login of this machine for it.

    Raises:
        BuildError: It cannot be pulled.
    """
    login = write_login(source.place.registry, place.output)
    configuration = place.output / "docker"
    configuration.mkdir(mode=0o700)
    if login:
        login.rename(configuration / "config.json")
    own = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")  # has certificates, too
    environment = {"DOCKER_CERT_PATH": own, **client_environment(engine)}
    environment["DOCKER_CONFIG"] = str(configuration)
    try:
        code = follower.follow([client, "pull", source.place.pinned], environment)
    finally:
        shutil.rmtree(configuration)
    if code != 0:
        reason = follower.error(code)
        raise BuildError(
            f"the engine could not pull {source.place.repository}",
            place="step base",
            details=reason.details,
            next_step="without a network: `archive` in the recipe's [base]; through a mirror:"
            " TOOLKIT_REGISTRIES",
        )


def _load_archive(engine: Engine, remote: RemoteBase, place: Workspace, follower: Follower) -> str:
    """Load an archive that `docker save`, skopeo or podman wrote.

    Raises:
        BuildError: It holds another number of images than one.
    """
    path = place.scratch / "given.tar"
    path.symlink_to(str(remote.archive))  # its name may have characters that skopeo splits at
    if remote.base.bootstrap == "oci-archive":  # engines before 25 do not read it
        _copy_archive("oci-archive:given.tar", "docker-archive:base.tar", place, follower)
        path = place.scratch / "base.tar"
    with path.open("rb") as stream:
        images: list[Any] = engine.client.images.load(iter(lambda: stream.read(1 << 20), b""))
    path.unlink()
    if len(images) != 1:
        raise BuildError(
            f"the archive of the base holds {len(images)} images instead of one",
            place=str(remote.archive),
        )
    tag = str(images[0].id).removeprefix("sha256:")[:12]
    images[0].tag("toolkit/archive", tag)  # an image without a name cannot be a base
    return f"toolkit/archive:{tag}"


def _copy_archive(source: str, target: str, place: Workspace, follower: Follower) -> None:
    """Let skopeo copy an image from one kind of archive in the scratch directory to another.

    Raises:
        BuildError, NoSpaceError: It could not be read or written.
    """
    options = ("--insecure-policy", "--tmpdir", str(place.scratch))
    command = [require_skopeo(), *options, "copy", "--dest-oci-accept-uncompressed-layers"]
    environment = {"PATH": SYSTEM_PATH, "HOME": str(place.scratch), "LC_ALL": "C.UTF-8"}
    code = follower.follow([*command, source, target], environment, cwd=place.scratch)
    if code != 0:
        raise follower.error(code)


def _has_image(engine: Engine, name: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        engine.client.images.get(name)
    except ImageNotFound:
        return False
    return True


def _convert(engine: Engine, image: str, plan: Plan, place: Workspace, follower: Follower) -> str:
    """Make ``place.sif`` of an engine's image; return the program that did it.

    Apptainer reads `docker save`'s archive as well, but compresses every layer by gzip first, on
    one core, and then decompresses it. In an OCI layout it takes layers uncompressed.
    """
    saved, layout = place.scratch / "saved.tar", place.scratch / _LAYOUT
    with _engine_errors(engine, "save the image"), saved.open("wb") as stream:
        for chunk in engine.client.images.get(image).save(chunk_size=1 << 20):
            stream.write(chunk)
    _copy_archive("docker-archive:saved.tar", f"oci:{_LAYOUT}", place, follower)
    saved.unlink()
    text = conversion(plan.name, engine.name, plan.variables)
    try:
        return apptainer.pack_archive(text, place, follower, place.scratch)
    finally:
        shutil.rmtree(layout, ignore_errors=True)


def conversion(name: str, engine: str, environment: Mapping[str, str]) -> str:
    r"""Return the definition for what an image of Docker's has no place for.

    Environment and labels are copied by Apptainer, except for values with a dollar sign: Apptainer
    1.4 writes them as ``"${A:-"\$X"}"``, which its shell reads as a backslash and the value of X.
    """
    dollars = {variable: value for variable, value in environment.items() if "$" in value}
    settings = (f"{variable}={quote_word(value)}" for variable, value in dollars.items())
    exported = "\n".join(f"    export {setting}" for setting in settings)
    return (
        f"# {name}: built by {engine}, and put into a SIF by toolkit.\n"
        + f"Bootstrap: oci\nFrom: {_LAYOUT}"
        + (f"\n\n%environment\n{exported}\n" if dollars else "")
        + f'\n\n%runscript\n    exec "$@"\n\n%test\n    exec sh {CHECKS}/run\n'
    )
