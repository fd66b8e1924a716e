"""Build a definition into a SIF file by Apptainer.

This does not go through spython, whose ``build`` hides a failure, asks for sudo, cannot pass the
host configuration, and can deadlock while it streams; and none of its calls can be stopped together
with the processes that they started. It serves where a command is short and only read
(``inspect`` in ``store/settings.py``). Facts about Apptainer 1.4:

- It writes every value of a build argument into the image, in the definition and in a label. So the
  mirror is not given to it: it is made to put ``{{ mirror }}`` where that is written already, and
  the ``debootstrap`` that it finds first is ours, which puts the mirror there.
- After a bootstrap by ``--fakeroot`` one of its threads keeps a core busy until the end
  (``prepareFakerootEnv``: its ``break`` leaves a select, not the loop). It may use one core only.
- A build sees the machine's own ``/tmp`` and ``/var/tmp``, where a killed build would leave its
  files: it is given others.
- It takes settings from ``APPTAINER_*`` of the user, keeps caches in the home, and unpacks in
  ``/tmp``: it gets an environment of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from toolkit import shell
from toolkit.errors import ForbiddenError
from toolkit.files import read_text
from toolkit.images.builder.apptainer.compose import normalize_times
from toolkit.images.builder.apptainer.programs import (
    COMPRESSION,
    clean_environment,
    fence_command,
    program_version,
    with_sources,
)
from toolkit.images.builder.follow import LAST_STEPS, Follower
from toolkit.images.host import host_config
from toolkit.images.host.host_config import mount_options
from toolkit.images.host.privilege import build_options, may_mount
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.bases import Base, Debootstrap, Definition, LocalImage
from toolkit.images.recipe.image_checks import promised_variables
from toolkit.images.recipe.plan import Plan
from toolkit.images.recipe.reproducible import EPOCH
from toolkit.images.sif import BLOCK_SIZE, UNCOMPRESSED_TABLES
from toolkit.images.store.cache import BASES, Cache, CacheEntry
from toolkit.images.store.contents import VARIABLES, read_contents
from toolkit.images.store.settings import inspect
from toolkit.model.image import Layer
from toolkit.quoting import shell_words

BUILD_DATE = "org.label-schema.build-date"
_MIRROR = "{{ mirror }}"


@dataclass(frozen=True)
class BuildOutcome:
    """The outcome of a build whose image is yet to be checked.

    Attributes:
        builder: The programs that built it.
        cached: The steps that came from a cache.
        variables: The variables of the image's base, if it is an image of this machine.
        layers: The layers, as of a manifest.
        unequal: The layers that differ from the lock, though they were built from it.
        keep: Names the image in the engine that built it, after it has passed its checks.
    """

    builder: str
    cached: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()
    unequal: tuple[str, ...] = ()
    keep: Callable[[], object] = bool


def build(
    place: Workspace,
    follower: Follower,
    plan: Plan,
    definition: str,
    environment: Mapping[str, str],
) -> BuildOutcome:
    """Build ``place.sif`` as one: Apptainer does not confine the steps.

    Args:
        place: The directories of this build.
        follower: Follows it.
        plan: The plan of the image.
        definition: Its definition.
        environment: Further variables for Apptainer, such as a login.

    Raises:
        BuildError: A step failed; names it, its command, and the end of the log.
        NoSpaceError: A disk was full.
        NeedsInstallError, ForbiddenError: This machine or user cannot build.
    """
    build_options()
    config = with_sources(host_config.collect_host_config(), plan)
    names = {step.name: step.detail for step in (*plan.repeated, *plan.steps)}
    follower.details = {"base": plan.base.output().detail, **LAST_STEPS, **names}
    follower.secrets = host_config.collect_secrets(config)
    follower.begin("base")
    local = Path(plan.base.path if isinstance(plan.base, LocalImage) else "")
    if isinstance(plan.base, Definition):
        local = Path(cached_base(plan, place, follower).path)
        header = "\n".join(plan.base.output().header)
        definition = definition.replace(header, f"Bootstrap: localimage\nFrom: {local}")
    binds = host_config.write_host_config(config, place.output / "host")
    _run(
        definition,
        place.sif,
        place,
        follower,
        (*_base_arguments(plan.base, place), *mount_options(binds), *_temporary_mounts(place)),
        login=environment,
        steps=[*names, "pack"],
        readable=(*plan.base.output().reads, *(bind.source for bind in binds)),
    )
    variables = read_contents(str(local), VARIABLES).variables if local.is_file() else {}
    return BuildOutcome(program_version(), variables=variables)


def make_base(
    plan: Plan,
    key: str,
    place: Workspace,
    follower: Follower,
    *,
    environment: Mapping[str, str] | None = None,
    replace: bool = False,
) -> CacheEntry:
    """Build only the base of an image, for layers to be put on it; keep it in the cache.

    Args:
        plan: The plan of the image.
        key: The key in the cache.
        place: The directories of this build.
        follower: Follows it.
        environment: Further variables for Apptainer, such as a login.
        replace: As of ``Cache.keep``.

    Raises:
        BuildError, NoSpaceError: It failed.
        NeedsInstallError, ForbiddenError: This machine or user cannot build.
    """
    build_options()
    base, made, began = plan.base, place.output / "base.sif", int(time.time()) - 1
    cwd, text = "/", "\n".join(base.output().header) + f"\n\n%labels\n    {BUILD_DATE} {EPOCH}\n"
    if isinstance(base, Definition):  # what it copies is relative to it
        cwd, text = str(Path(base.path).parent), read_text(Path(base.path))
    if base.output().setup:
        text += "\n%setup\n" + "\n".join(f"    {line}" for line in base.output().setup) + "\n"
    _run(
        text,
        made,
        place,
        follower,
        (*_base_arguments(base, place), *_temporary_mounts(place, "base")),
        packing=(*COMPRESSION, "-b", str(BLOCK_SIZE), *UNCOMPRESSED_TABLES),
        login=environment or {},
        cwd=cwd,
        readable=base.output().reads,
    )
    normalize_times(made, began, EPOCH)
    variables = promised_variables(read_contents(str(made), VARIABLES).variables, {}, ())
    return Cache(place.images).keep(
        BASES,
        key,
        made,
        about=base.output().detail,
        facts=inspect(made)["labels"],
        variables=variables,
        replace=replace,
    )


def cached_base(plan: Plan, place: Workspace, follower: Follower) -> CacheEntry:
    """Return the base of a plan from the cache, or build it; errors as of ``make_base``."""
    entry = Cache(place.images).use(BASES, plan.base_key)
    return entry or make_base(plan, plan.base_key, place, follower)


def pack_archive(definition: str, place: Workspace, follower: Follower, cwd: Path) -> str:
    """Build ``place.sif`` of another engine's archive in ``cwd``; return the program that did it.

    A user without subordinate ids may do this, too: no step changes an owner. Errors as of
    ``make_base``.
    """
    follower.begin("pack")
    _run(definition, place.sif, place, follower, _temporary_mounts(place), cwd=cwd)
    return program_version()


def _run(
    text: str,
    target: Path,
    place: Workspace,
    follower: Follower,
    arguments: Iterable[str],
    *,
    packing: Iterable[str] = COMPRESSION,
    login: Mapping[str, str] = {},  # never changed
    steps: Collection[str] = (),
    cwd: Path | str = "/",
    readable: Iterable[str] = (),
) -> None:
    """Run ``apptainer build`` behind the fence.

    Args:
        text: The definition.
        target: The SIF file.
        place: The directories of this build.
        follower: Follows it.
        arguments: Further arguments of this build.
        packing: The options of mksquashfs.
        login: Further variables for Apptainer.
        steps: As of ``Follower.follow``.
        cwd: Its current directory.
        readable: What it reads, wherever it is.

    Raises:
        BuildError, NoSpaceError: It failed.
        NeedsInstallError: bubblewrap is not installed.
    """
    definition = place.output / "image.def"
    definition.write_text(text, encoding="utf-8")
    # --force: it replaces no file, but only so may a definition's labels replace Apptainer's own.
    words = [shell.require_apptainer(), "build", "--force", "--notest"]
    words += ["--mksquashfs-args", " ".join(packing), *arguments]
    fence = fence_command(place, follower, readable, cwd)
    if may_mount() or not fence:  # else a user is root already and may change owners
        with suppress(ForbiddenError):  # who packs an archive changes none
            words += build_options()
    environment = {**_environment(place), **login}
    files = (str(target), str(definition))
    code = follower.follow([*fence, *words, *files], environment, steps=steps, cwd=cwd)
    if code != 0:
        raise follower.error(code)


def _base_arguments(base: Base, place: Workspace) -> list[str]:
    """Return the arguments of a base by debootstrap, whose mirror must not get into the image."""
    if not isinstance(base, Debootstrap):
        return []
    program = host_config.debootstrap_command()
    mirror = host_config.debian_mirror(base.release)
    directory = place.output / "bin"
    directory.mkdir()
    script = directory / "debootstrap"
    # The mirror is the last of its arguments: the others are moved behind it one by one, and it is
    # dropped.
    script.write_text(
        "#!/bin/sh\ncount=$#\n"
        'while [ "$count" -gt 1 ]; do set -- "$@" "$1"; shift; count=$((count - 1)); done\n'
        # For base-passwd, which writes the day of each password's last change. The packing must
        # not see it: it would set all times to it.
        f"shift\nexport SOURCE_DATE_EPOCH={EPOCH}\n"
        f'exec {shell_words(program)} "$@" {shell_words([mirror])}\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    (place.output / "arguments").write_text(f"mirror={_MIRROR}\n", encoding="utf-8")
    return ["--build-arg-file", str(place.output / "arguments")]


def _temporary_mounts(place: Workspace, name: str = "within") -> tuple[str, ...]:
    """Return mounts of directories for temporary files, which are removed with the build."""
    return mount_options(place.temporary_bind(target, name) for target in ("/tmp", "/var/tmp"))


def _environment(place: Workspace) -> dict[str, str]:
    environment = clean_environment()
    program = str(Path(shell.require_apptainer()).parent)
    environment |= {
        "PATH": f"{place.output / 'bin'}:{environment['PATH']}:{program}",
        "GOMAXPROCS": "1",
        "TMPDIR": str(place.scratch / "tmp"),
        **host_config.proxies(),
    }
    directories = {
        "TMPDIR": place.scratch / "tmp",
        "CACHEDIR": place.scratch / "cache",
        "CONFIGDIR": place.output / "config",
    }
    for name, directory in directories.items():
        directory.mkdir(exist_ok=True)
        environment |= {f"APPTAINER_{name}": str(directory), f"SINGULARITY_{name}": str(directory)}
    return environment
