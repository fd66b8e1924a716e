"""Read the lock of a recipe, and fetch its files for a build."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from toolkit.errors import BuildError, ConfigError, ToolkitError
from toolkit.files import hash_file, read_toml
from toolkit.images.host import host_config as host
from toolkit.images.host.host_config import HostConfig
from toolkit.images.lockfile.apply import locked_host_config, parse_missing
from toolkit.images.lockfile.index import Index
from toolkit.images.recipe import library
from toolkit.images.recipe.lock import Lock, parse_lock
from toolkit.images.recipe.plan import Plan
from toolkit.units import counted

_INDEX = re.compile(r"--(?:extra-)?index-url[ =](\S+)")
_FILES = ".cache/files"


def lock_path(recipe: str) -> Path:
    """Return the path of the lock of a recipe: beside it."""
    return library.recipe_path(recipe).with_suffix(".lock")


def read(path: Path, resolved: Plan) -> Lock:
    """Read the lock of a recipe.

    Raises:
        ConfigError: it does not exist, is broken, or the recipe has changed since.
    """
    if not path.is_file():
        raise ConfigError(
            f"{resolved.name} has no lock",
            place=str(path),
            next_step=f"toolkit image lock {resolved.name}",
        )
    lock = read_lock(path)
    if lock.recipe_hash != library.hash_recipe(resolved):
        raise ConfigError(
            f"the recipe of {resolved.name} is not the one that was locked",
            place=str(path),
            next_step=f"toolkit image build {resolved.name}, "
            f"and then: toolkit image lock {resolved.name}",
        )
    return lock


def read_lock(path: Path) -> Lock:
    """Read a lock that the user named; errors as ``read_toml``."""
    return read_toml(path, Lock, named=True, parse=parse_lock)


def open_index(resolved: Plan) -> Index:
    """Return the indexes of a recipe: those of pip on this machine, and those that it names."""
    lines = (
        line
        for output in resolved.outputs
        for line in (*output.lines, *getattr(output, "build_lines", ()))
    )
    further = dict.fromkeys(shlex.split(url)[0] for line in lines for url in _INDEX.findall(line))
    return Index(settings=host.read_pip_settings(), further=tuple(further))


def fetch_files(lock: Lock, resolved: Plan, images: Path, target: Path) -> HostConfig:
    """Fetch the files of a lock, and return the host configuration of a build by it.

    Args:
        lock: the lock.
        resolved: its recipe.
        images: the directory of images, which also keeps fetched files.
        target: a directory for the files of this build, which does not exist yet.

    Raises:
        BuildError: a file is gone, or another one has its name now; the message names all.
    """
    target.mkdir()
    index, gone = open_index(resolved), list[str]()
    for packages in (lock.pip, lock.pip_build):  # they may have one package in two versions
        digests = {digest for pinned in packages for digest in pinned.sha256}
        lacks = {digest for digest in digests if not _take(images / _FILES / digest, target)}
        missing = [pinned for pinned in packages if lacks.intersection(pinned.sha256)]
        wanted = {pinned.name: pinned.version for pinned in missing}
        for file in index.list_files(wanted, lock.python) if wanted else ():
            if file.sha256 in lacks:
                directory = images / _FILES / file.sha256
                directory.mkdir(parents=True, exist_ok=True)
                index.fetch(file, directory / file.name)
                lacks -= {file.sha256} if _take(directory, target) else set()
        gone += (
            f"{pinned.name} {pinned.version} (sha256 {digest})"
            for pinned in missing
            for digest in pinned.sha256
            if digest in lacks
        )
    if gone:
        raise BuildError(
            f"no package index has {counted(len(gone), 'file')} of the lock of {lock.name} any "
            "more, or has another under the same name",
            place=", ".join(package.split()[0] for package in gone),
            details=gone,
            next_step="add the index or directory that has it to pip's configuration (find-links), "
            "or lock again",
        )
    return locked_host_config(host.collect_host_config(), lock, str(target))


def _take(directory: Path, target: Path) -> bool:
    """Take the kept file that has the hash which its directory is called; False: there is none.

    The file of this build is hashed, which no other build can change.
    """
    for path in filter(Path.is_file, sorted(directory.glob("[!.]*"))):
        taken = target / f".{path.name}"  # one that was taken may have its name
        shutil.copyfile(path, taken)
        if hash_file(taken) == directory.name:
            taken.replace(target / path.name)
            return True
        taken.unlink()
    return False


def explain_failure(error: ToolkitError, lock: Lock, log: Path) -> ToolkitError:
    """Return the reason why a locked build failed.

    It is that a mirror no longer has a package, if the log says so, else the error itself.
    """
    try:
        gone = parse_missing(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return error
    if not gone:
        return error
    return BuildError(
        f"the mirror no longer has {counted(len(gone), 'package')} of {lock.name} in the version "
        "that is locked",
        place=", ".join(package.split()[0] for package in gone),
        details=gone,
        next_step=f"set {host.MIRROR_VARIABLE} to a mirror that keeps old versions "
        "(snapshot.debian.org), or build it now and lock that",
    )
