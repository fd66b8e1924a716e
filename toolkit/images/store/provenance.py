"""The provenance of an image: the hashes that identify it, its base and its tools."""

from __future__ import annotations

import errno
import re
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

from toolkit import __version__, shell
from toolkit.errors import (
    CommandFailedError,
    ImageMissingError,
    MalformedInputError,
    NeedsInstallError,
)
from toolkit.files import hash_file
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, Definition, LocalImage
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.lock import Lock, format_lock
from toolkit.images.recipe.plan import Plan
from toolkit.images.store import store
from toolkit.images.store.sif_files import partition_digest
from toolkit.model.image import BaseImage, Manifest

_VERSION = re.compile(r"(?<![\d.])\d{1,9}(?:\.\d{1,9})+\S*")


def hash_lock(lock: Lock | None) -> str:
    """Return the lock's hash as the manifest has it."""
    return hash_texts(format_lock(lock)) if lock else ""


def expected_hash(resolved: Plan) -> str:
    """Return the hash in the manifest of an image that is built from this recipe here and now."""
    recipe_hash, state = library.hash_recipe(resolved), base_state(resolved)
    return hash_texts(f"{recipe_hash} {state}") if state else recipe_hash


def base_state(resolved: Plan) -> str:
    """Return what identifies the file of a local base; empty for other bases.

    Raises:
        ImageMissingError: The base does not exist, or is a pipe or the like.
    """
    if not isinstance(resolved.base, LocalImage | Definition):
        return ""
    path = Path(resolved.base.path)
    try:
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise OSError(errno.EINVAL, "it is neither a file nor a directory")
    except OSError as error:
        raise ImageMissingError(
            f"the base of {resolved.name} cannot be read: {error.strerror}", place=str(path)
        ) from None
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


def find_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a SIF, if it is whole and has one."""
    try:
        return store.manifest_of(path)
    except (ImageMissingError, MalformedInputError):
        return None


def describe_base(base: Base, *, digest: bool = False) -> BaseImage:
    """Return a recipe's base for a manifest.

    Args:
        base: The base.
        digest: Hash a local base, which takes a second for each 1.5 GB.
    """
    if isinstance(base, LocalImage):
        path = Path(base.path)
        hashed = f"sha256:{partition_digest(path)}" if digest and path.is_file() else ""
        return BaseImage(reference=base.path, digest=hashed)
    if isinstance(base, Definition):
        return BaseImage(reference=base.path, digest=f"sha256:{hash_file(Path(base.path))}")
    output = base.output()
    return BaseImage(
        reference=output.reference or output.detail,
        digest=str(getattr(base, "digest", None) or ""),
    )


def tool_versions(builder: str) -> dict[str, str]:
    """Return the versions of the programs that built an image.

    Args:
        builder: The programs that built it: ``docker 20.10.24, apptainer 1.4.5``.
    """
    versions = {"toolkit": __version__}
    for program in builder.split(", "):
        name, _, version = program.strip().rpartition(" ")
        if name and version:
            versions[name] = version
    return versions | helper_versions()


@cache
def helper_versions() -> dict[str, str]:
    """Return the versions of the programs that Apptainer calls; asked once, since they are slow."""
    versions: dict[str, str] = {}
    for name, program, option in (
        ("squashfs-tools", "mksquashfs", "-version"),
        ("debootstrap", "debootstrap", "--version"),
    ):
        # No reason for a finished build to fail.
        with suppress(NeedsInstallError, CommandFailedError):
            output = shell.run([program, option], check=False, timeout=30).stdout
            match = _VERSION.search(output)
            versions |= {name: match[0]} if match else {}
    return versions
