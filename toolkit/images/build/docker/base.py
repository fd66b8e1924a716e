"""What a build by Docker begins with: brought into the engine first, so that the build itself needs neither a registry nor a login."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from toolkit.errors import (
    BuildError,
    ConfigError,
    ForbiddenError,
    ImageMissingError,
    MalformedInputError,
)
from toolkit.images.build import host_config as host
from toolkit.images.build.docker.archive import as_docker_archive, write_docker_archive
from toolkit.images.build.fetched import ResolvedBase
from toolkit.images.build.follow import Follower
from toolkit.images.build.workspace import Workspace
from toolkit.images.recipe.bases import Base, Debootstrap
from toolkit.images.registry.auth import Credentials
from toolkit.images.registry.source import Source
from toolkit.quoting import shell_words
from toolkit.runtimes.discover.docker_engine import Engine

# As Apptainer calls debootstrap: the same packages by either engine.
_DEBOOTSTRAP = ("--variant=minbase", "--exclude=openssl,udev,debconf-i18n,e2fsprogs")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FORMAT = 1  # of the bases that we make; another number makes them anew
# What debootstrap brings from this machine and from the mirror: no layer of an image may hold it.
# Run in the new root, so that its links lead to nothing of this machine.
_CLEAN = """
cd /
for file in hostname hosts resolv.conf; do : > "etc/$file"; done
rm -rf dev/*
echo '# The mirror of the build is not kept.' > etc/apt/sources.list
rm -rf var/lib/apt/lists/* var/cache/apt/* var/cache/ldconfig/* var/cache/debconf/*-old var/lib/dpkg/*-old
find var/log -type f -delete
"""


def prepare_base(
    engine: Engine, base: Base, found: ResolvedBase | None, place: Workspace, follower: Follower
) -> str:
    """Make the base of a recipe be there; what the engine calls exactly this one.

    Args:
        found: which image it is, of a base from a registry or an archive.

    Raises:
        ConfigError: Docker cannot begin with this kind of base.
        BuildError, NeedsInstallError, ForbiddenError, ImageMissingError: it could not be made, loaded or fetched.
        UnknownImageError, CommandFailedError: of its registry.
    """
    if isinstance(base, Debootstrap):
        return _debian(engine, base, place, follower)
    if found and found.archive:
        return _loaded(engine, found.archive, place)
    if found and found.source:
        return _pulled(engine, found.source, follower)
    raise ConfigError(
        f"Docker cannot begin with this kind of base: {base.detail()}",
        place="the recipe's [base]",
        next_step="build it with: --engine apptainer",
    )


def _debian(engine: Engine, base: Debootstrap, place: Workspace, follower: Follower) -> str:
    """The same Debian that Apptainer would begin with; made once for each release and set of packages, and kept in the engine."""
    made_from = f"{_FORMAT} {base.release} {' '.join(base.packages)} {' '.join(_DEBOOTSTRAP)}"
    tag = f"{base.release}-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"
    name = engine.own(f"toolkit/debian:{tag}")
    if not _there(engine, name):
        tree, archive = place.scratch / "debian.tar", place.scratch / "base.tar"
        _bootstrap(base, place, tree, follower)
        config = {
            "Env": [f"PATH={_PATH}"],
            "Cmd": ["/bin/bash"],
            "Labels": {"toolkit.base": f"debian {base.release}"},
        }
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        write_docker_archive(tree, archive, name, config, _architecture(), now)
        tree.unlink()
        _load(engine, archive)
        archive.unlink()
    return name


def _load(engine: Engine, archive: Path) -> None:
    from docker.errors import DockerException

    try:
        with archive.open("rb") as stream:
            engine.client.images.load(_chunks(stream))
    except (DockerException, OSError) as error:
        raise BuildError(
            f"{engine} did not take the base in",
            place="step base",
            details=(str(error)[:300],),
            next_step="look at the engine's own log, and whether its disk has room",
        ) from None


def _architecture() -> str:
    return _ARCHITECTURES.get(os.uname().machine, os.uname().machine)


def _bootstrap(base: Debootstrap, place: Workspace, tree: Path, follower: Follower) -> None:
    program = shell_words(host.debootstrap_command())
    if os.geteuid() != 0:
        raise ForbiddenError(
            f"the engine has no debian {base.release} of ours yet, and only root can make it",
            next_step="let root build one image with --engine docker, or build with: --engine apptainer",
        )
    root = place.scratch / "debian"
    options = [
        *_DEBOOTSTRAP,
        f"--include={','.join(('apt', *base.packages))}",
        f"--arch={_architecture()}",
    ]
    script = f'set -e; {program} "$@" && chroot "$root" /bin/sh -ec "$clean" && tar -C "$root" --numeric-owner --sort=name -cf "$tree" .'
    command = [
        "unshare",
        "--mount",
        "/bin/sh",
        "-c",
        script,
        "sh",
        *options,
        base.release,
        str(root),
        host.debian_mirror(base.release),
    ]
    env = {
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
        "root": str(root),
        "tree": str(tree),
        "clean": _CLEAN,
        **host.proxies(),
    }
    code = follower.follow(command, env, place)
    if code != 0:
        raise follower.error(code)


def _pulled(engine: Engine, found: Source, follower: Follower) -> str:
    if not _there(engine, found.place.pinned):
        _pull(engine, found, follower)
    return found.place.pinned


def _pull(engine: Engine, found: Source, follower: Follower) -> None:
    from docker.errors import APIError, DockerException

    follower.say(f"fetches {found.place.pinned}")
    try:
        messages = engine.client.api.pull(
            found.place.repository,
            tag=found.place.digest,
            stream=True,
            decode=True,
            auth_config=_login(found.login),
        )
        for message in messages:
            if "error" in message:
                raise _pull_failed(found, str(message["error"]))
    except (APIError, DockerException, OSError) as error:
        raise _pull_failed(found, str(getattr(error, "explanation", None) or error)) from None


def _login(login: Credentials | None) -> dict[str, str]:
    """For the engine, in the body of our request. Never empty: for that the SDK would look for logins by its own rules."""
    if login is None:
        return {"username": "", "password": ""}
    return (
        {"identitytoken": login.token}
        if login.token
        else {"username": login.user, "password": login.secret}
    )


def _pull_failed(found: Source, reason: str) -> BuildError:
    return BuildError(
        f"the engine could not fetch {found.place.repository}",
        place="step base",
        details=tuple(reason.strip().splitlines()[-5:]),
        next_step="without a network: `archive` in the recipe's [base]; through a mirror: TOOLKIT_REGISTRIES",
    )


def _loaded(engine: Engine, path: Path, place: Workspace) -> str:
    """From a file that `docker save`, skopeo or podman wrote."""
    from docker.errors import DockerException

    try:
        with as_docker_archive(path, place.scratch) as file, file.open("rb") as stream:
            images = engine.client.images.load(_chunks(stream))
    except OSError as error:
        raise ImageMissingError(
            f"the archive of the base cannot be read: {error.strerror or error}", place=str(path)
        ) from None
    except (DockerException, MalformedInputError) as error:  # the same code as by Apptainer
        raise BuildError(
            "the archive of the base is none that the engine can load",
            place=str(path),
            details=(str(error)[:300],),
        ) from None
    if len(images) != 1:
        raise BuildError(
            f"the archive of the base holds {len(images)} images, not one", place=str(path)
        )
    name = engine.own(f"toolkit/archive:{str(images[0].id).removeprefix('sha256:')[:12]}")
    images[0].tag(*name.rsplit(":", 1))  # an image without a name cannot be built from
    return name


def _chunks(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(1 << 20):
        yield chunk


def _there(engine: Engine, name: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        engine.client.images.get(name)
    except ImageNotFound:
        return False
    return True
