"""Read the lock of a recipe, and fetch its files for a build."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from toolkit.errors import BuildError, CommandFailedError, ConfigError, ToolkitError
from toolkit.files import hash_file, read_toml
from toolkit.images.host import host_config as host
from toolkit.images.host.host_mounts import HostConfig
from toolkit.images.lockfile.apply import list_changes, locked_host_config, parse_missing
from toolkit.images.lockfile.index import Index
from toolkit.images.lockfile.packages import File
from toolkit.images.recipe import library
from toolkit.images.recipe.lock import FORMAT, Lock, Pinned
from toolkit.images.recipe.names import require_file_name, require_sha256
from toolkit.images.recipe.plan import Plan

_INDEX = re.compile(r"--(?:extra-)?index-url[ =](\S+)")
_FILES = ".cache/files"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def lock_path(recipe: str) -> Path:
    """Return the path of the lock of a recipe: beside it."""
    return library.recipe_path(recipe).with_suffix(".lock")


def read(path: Path, resolved: Plan) -> Lock:
    """Read the lock of a recipe.

    Raises:
        ConfigError: it does not exist, is broken, or the recipe has changed since; the message says
            in which parts.
    """
    if not path.is_file():
        raise ConfigError(
            f"{resolved.name} has no lock",
            place=str(path),
            next_step=f"toolkit image lock {resolved.name}",
        )
    lock = read_toml(path, Lock, named=True)  # beside the recipe that the user named
    if lock.format != FORMAT:
        raise ConfigError(
            f"the lock is of format {lock.format}, not {FORMAT}",
            place=str(path),
            next_step=f"toolkit image lock {resolved.name}",
        )
    changed = list_changes(lock, resolved, library.hash_recipe(resolved))
    if changed:
        raise ConfigError(
            f"the recipe of {resolved.name} is not the one that was locked",
            place=str(path),
            details=changed,
            next_step=f"toolkit image build {resolved.name}, "
            f"and then: toolkit image lock {resolved.name}",
        )
    return lock


def open_index(resolved: Plan) -> Index:
    """Return the indexes of a recipe: those of pip on this machine, and those that it names."""
    lines = (
        line
        for output in resolved.outputs
        for line in (*output.lines, *getattr(output, "build_lines", ()))
    )
    further = (shlex.split(url)[0] for line in lines for url in _INDEX.findall(line))
    return Index(host.read_pip_settings(), dict.fromkeys(further))


def fetch_files(lock: Lock, resolved: Plan, images: Path, target: Path) -> HostConfig:
    """Fetch the files of a lock, and return the host configuration of a build by it.

    Args:
        lock: the lock.
        resolved: its recipe.
        images: the directory of images, which also keeps fetched files.
        target: a directory for the files of this build, which does not exist yet.

    Raises:
        BuildError: a file is gone, or another one has its name now; the message names all.
        MalformedInputError: a file's name or hash in the lock is invalid.
    """
    index = open_index(resolved)
    place = f"the lock of {lock.name}"
    paths = {
        pinned: images
        / _FILES
        / require_sha256(pinned.sha256, place)
        / require_file_name(pinned.file, place)
        for pinned in lock.files
    }
    target.mkdir()
    gone: list[str] = []
    for pinned, path in paths.items():
        digest = pinned.sha256
        if not path.is_file() or hash_file(path) != digest:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not any(index.fetch(file, path) == digest for file in _fitting(pinned, index)):
                path.unlink(missing_ok=True)
                gone.append(f"{pinned.name} {pinned.version}: {pinned.file} (sha256 {digest})")
                continue
        _link_or_copy(path, target / path.name)
    if gone:
        count = "1 file" if len(gone) == 1 else f"{len(gone)} files"
        raise BuildError(
            f"no package index has {count} of the lock of {lock.name} any more, "
            "or has another under the same name",
            place=", ".join(package.split()[0] for package in gone),
            details=gone,
            next_step="add the index or directory that has it to pip's configuration (find-links), "
            "or lock again",
        )
    return locked_host_config(host.collect_host_config(), lock, str(target))


def _link_or_copy(path: Path, target: Path) -> None:
    """Link a kept file, or copy it, as to another disk, or if others could change it by then."""
    status = path.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE:
        with suppress(OSError):
            os.link(path, target)
            return
    shutil.copyfile(path, target)


def _fitting(pinned: Pinned, index: Index) -> Iterator[File]:
    """Yield the sources of a file; the recipe's own indexes come after the others."""
    for list_files in (index.files, index.further):
        try:
            yield from (
                file
                for file in list_files(pinned.name)
                if file.name == pinned.file and file.sha256 in ("", pinned.sha256)
            )
        except CommandFailedError:
            if list_files == index.files:
                raise


def explain_failure(error: ToolkitError, lock: Lock, log: Path) -> ToolkitError:
    """Return the reason why a locked build failed.

    It is that a mirror no longer has a package, if the log says so, else the error itself.
    """
    try:
        gone = parse_missing(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return error
    return missing_packages_error(lock.name, gone) if gone else error


def missing_packages_error(name: str, gone: Iterable[str]) -> BuildError:
    """Return the error for packages that the mirror no longer has in the version of a lock."""
    gone = tuple(gone)
    count = "1 package" if len(gone) == 1 else f"{len(gone)} packages"
    return BuildError(
        f"the mirror no longer has {count} of {name} in the version that is locked",
        place=", ".join(package.split()[0] for package in gone),
        details=gone,
        next_step=f"set {host.MIRROR_VARIABLE} to a mirror that keeps old versions "
        "(snapshot.debian.org), or build it now and lock that",
    )
