"""What an image of a recipe would be known by, and whether the one that is there is it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from toolkit.errors import ImageMissingError
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.store import store
from toolkit.model.image import Manifest
from toolkit.model.lock import Lock, to_toml


def hash_lock(lock: Lock | None) -> str:
    """What a manifest says of the lock that its image was built from."""
    return hashlib.sha256(to_toml(lock).encode()).hexdigest() if lock else ""


def expected_hash(resolved: Resolved) -> str:
    """What the manifest of an image says that is of this recipe, on this machine."""
    return hash_recipe(resolved, base_state(resolved))


def find_existing(directory: Path, name: str) -> tuple[Path, Manifest] | None:
    """The image that is there whole, with its manifest; one without counts as none."""
    path = directory / f"{name}.sif"
    try:
        manifest = store.manifest_of(path, store.whole_header(path))
    except ImageMissingError:
        return None
    return (path, manifest) if manifest else None


def base_state(resolved: Resolved) -> str:
    """Of a base that lies on this machine, what tells it from another in the same place; empty for other bases.

    Raises:
        ImageMissingError: the base is not there.
    """
    if not isinstance(resolved.base, LocalImage):
        return ""
    path = Path(resolved.base.path)
    try:
        state = path.stat()
    except OSError as error:
        raise ImageMissingError(
            f"the base of {resolved.name} cannot be read: {error.strerror}", place=str(path)
        ) from None
    return f"{state.st_ino} {state.st_size} {state.st_mtime_ns}"


def hash_recipe(resolved: Resolved, state: str) -> str:
    """The recipe's hash, and for a base that lies on this machine also what that is now."""
    recipe_hash = library.recipe_hash(resolved)
    return hashlib.sha256(f"{recipe_hash} {state}".encode()).hexdigest() if state else recipe_hash
