"""Bring the base of a build by Docker into the engine.

The build itself then needs neither a registry nor a login.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import (
    BuildError,
    ConfigError,
    ForbiddenError,
    ImageMissingError,
)
from toolkit.files import hash_file
from toolkit.images.builder.follow import Follower
from toolkit.images.builder.remote_base import RemoteBase
from toolkit.images.host import host_config
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.bases import Base, Debootstrap
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.registry.registry import Source, require_skopeo, write_login
from toolkit.quoting import shell_words
from toolkit.runtimes.docker import Engine

# As Apptainer calls debootstrap: the same packages by either engine.
_DEBOOTSTRAP = ("--variant=minbase", "--exclude=openssl,udev,debconf-i18n,e2fsprogs")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FORMAT = 1  # of the bases that we make; increase it to make them again
# Removes what debootstrap takes from this machine and from the mirror: no layer may hold it. It
# runs in the new root, so that the root's links do not lead to files of this machine.
_CLEAN = """
cd /
for file in hostname hosts resolv.conf; do : > "etc/$file"; done
rm -rf dev/*
echo '# The mirror of the build is not kept.' > etc/apt/sources.list
rm -rf var/lib/apt/lists/* var/cache/apt/* var/cache/ldconfig/*
rm -rf var/cache/debconf/*-old var/lib/dpkg/*-old
find var/log -type f -delete
"""
_SCRIPT = (
    'set -e; {program} "$@" && chroot "$root" /bin/sh -ec "$clean"'
    ' && tar -C "$root" --numeric-owner --sort=name -cf "$tree" .'
)


def prepare_base(
    engine: Engine, base: Base, remote: RemoteBase | None, place: Workspace, follower: Follower
) -> str:
    """Bring the base of a recipe into the engine; return the engine's name for exactly this image.

    Args:
        engine: The engine.
        base: The recipe's base.
        remote: The image of a base from a registry or an archive.
        place: The directories of this build.
        follower: Follows the programs that run.

    Raises:
        ConfigError: Docker cannot use this kind of base.
        BuildError, NeedsInstallError, ForbiddenError, ImageMissingError: The base could not be
            made, loaded or pulled.
        UnknownImageError, CommandFailedError: The registry failed.
    """
    if isinstance(base, Debootstrap):
        return _make_debian(engine, base, place, follower)
    if remote and remote.archive:
        return _load_archive(engine, remote, place, follower)
    if remote and remote.source:
        pinned = remote.source.place.pinned
        if not _has_image(engine, pinned):
            _pull(engine, remote.source, place, follower)
        return pinned
    raise ConfigError(
        f"Docker cannot use this kind of base: {base.output().detail}",
        place="the recipe's [base]",
        next_step="build it with: --engine apptainer",
    )


def _make_debian(engine: Engine, base: Debootstrap, place: Workspace, follower: Follower) -> str:
    """Make the same Debian as Apptainer, once per release and packages; the engine keeps it."""
    key = f"{_FORMAT} {base.release} {' '.join(base.packages)} {' '.join(_DEBOOTSTRAP)}"
    tag = f"{base.release}-{hash_texts(key)[:12]}"
    name = engine.own(f"toolkit/debian:{tag}")
    if _has_image(engine, name):
        return name
    tree, archive = place.scratch / "debian.tar", place.scratch / "base.tar"
    _bootstrap(engine, base, place, tree, follower)
    _write_archive(tree, archive, name, f"debian {base.release}")
    tree.unlink()
    _load(engine, archive, "step base")
    archive.unlink()
    return name


def _write_archive(tree: Path, archive: Path, name: str, label: str) -> None:
    """Write a tree as an archive that engines load.

    They could import the tree as it is, but podman's socket then drops the name and leaves a copy
    of the tree behind.
    """
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {
            "Env": [f"PATH={_PATH}"],
            "Cmd": ["/bin/bash"],
            "Labels": {"toolkit.base": label},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hash_file(tree)}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as stream:
        stream.add(tree, "layer.tar")
        for member, value in (("config.json", config), ("manifest.json", manifest)):
            text = json.dumps(value).encode()
            header = tarfile.TarInfo(member)
            header.size = len(text)
            stream.addfile(header, io.BytesIO(text))


def _load(engine: Engine, path: Path, place: str) -> Any:
    """Load an archive of one image; return the image.

    Raises:
        ImageMissingError: The archive cannot be read.
        BuildError: The engine does not take it, or it holds another number of images.
    """
    from docker.errors import DockerException

    try:
        with path.open("rb") as stream:
            images = engine.client.images.load(_chunks(stream))
    except DockerException as error:  # the same exit code as by Apptainer
        raise BuildError(
            f"{engine} cannot load the archive of the base",
            place=place,
            details=(str(error)[:300],),
            next_step="check the archive, the engine's own log, and that its disk has free space",
        ) from None
    except OSError as error:
        raise ImageMissingError(
            f"the archive of the base cannot be read: {error.strerror or error}", place=place
        ) from None
    if len(images) != 1:
        raise BuildError(
            f"the archive of the base holds {len(images)} images instead of one", place=place
        )
    return images[0]


def _architecture() -> str:
    return _ARCHITECTURES.get(os.uname().machine, os.uname().machine)


def _bootstrap(
    engine: Engine, base: Debootstrap, place: Workspace, tree: Path, follower: Follower
) -> None:
    program = shell_words(host_config.debootstrap_command())
    if os.geteuid() != 0:
        raise ForbiddenError(
            f"{engine} has no base for debian {base.release} yet, and only root can make it",
            next_step="let root build one image with --engine docker, or build with:"
            " --engine apptainer",
        )
    root = place.scratch / "debian"
    command = [
        *("unshare", "--mount", "/bin/sh", "-c", _SCRIPT.format(program=program), "sh"),
        *_DEBOOTSTRAP,
        f"--include={','.join(('apt', *base.packages))}",
        f"--arch={_architecture()}",
        base.release,
        str(root),
        host_config.debian_mirror(base.release),
    ]
    env = {
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
        "root": str(root),
        "tree": str(tree),
        "clean": _CLEAN,
        **host_config.proxies(),
    }
    code = follower.follow(command, env)
    if code != 0:
        raise follower.error(code)


def _pull(engine: Engine, source: Source, place: Workspace, follower: Follower) -> None:
    from docker.errors import DockerException

    follower.log_line(f"fetches {source.place.pinned}")
    login = write_login(source.place.registry, place.output)
    try:
        # The SDK takes the login from this file; an empty one keeps it from looking for others.
        engine.client.api.reload_config(dockercfg_path=str(login or os.devnull))
        messages = engine.client.api.pull(
            source.place.repository,
            tag=source.place.digest,
            stream=True,
            decode=True,
            auth_config=None if login else {"username": "", "password": ""},
        )
        for message in messages:
            if "error" in message:
                raise _pull_failed(source, str(message["error"]))
    except (DockerException, OSError, ValueError) as error:
        raise _pull_failed(source, str(getattr(error, "explanation", None) or error)) from None
    finally:
        if login:
            login.unlink()


def _pull_failed(source: Source, reason: str) -> BuildError:
    return BuildError(
        f"the engine could not pull {source.place.repository}",
        place="step base",
        details=tuple(reason.strip().splitlines()[-5:]),
        next_step="without a network: `archive` in the recipe's [base]; through a mirror:"
        " TOOLKIT_REGISTRIES",
    )


def _load_archive(engine: Engine, remote: RemoteBase, place: Workspace, follower: Follower) -> str:
    """Load an archive that `docker save`, skopeo or podman wrote."""
    path = place.scratch / "given.tar"
    path.symlink_to(str(remote.archive))  # its name may have characters that skopeo splits at
    if remote.base.bootstrap == "oci-archive":  # engines before 25 do not read it
        copy_archive("oci-archive:given.tar", "docker-archive:base.tar", place, follower)
        path = place.scratch / "base.tar"
    image = _load(engine, path, str(remote.archive))
    path.unlink()
    tag = str(image.id).removeprefix("sha256:")[:12]
    name = engine.own(f"toolkit/archive:{tag}")
    image.tag(*name.rsplit(":", 1))  # an image without a name cannot be a base
    return name


def copy_archive(source: str, target: str, place: Workspace, follower: Follower) -> None:
    """Let skopeo copy an image from one kind of archive to another.

    Args:
        source: The archive, by a name in the scratch directory: ``docker-archive:x.tar``.
        target: The archive to write.
        place: The directories of this build.
        follower: Follows the program.

    Raises:
        BuildError, NoSpaceError: It could not be read or written.
    """
    options = ("--insecure-policy", "--tmpdir", str(place.scratch))
    command = [require_skopeo(), *options, "copy", "--dest-oci-accept-uncompressed-layers"]
    environment = {"PATH": _PATH, "HOME": str(place.scratch), "LC_ALL": "C.UTF-8"}
    code = follower.follow([*command, source, target], environment, cwd=place.scratch)
    if code != 0:
        raise follower.error(code)


def _chunks(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(1 << 20):
        yield chunk


def _has_image(engine: Engine, name: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        engine.client.images.get(name)
    except ImageNotFound:
        return False
    return True
