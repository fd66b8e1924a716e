"""The list of `image list`: every recipe and every image, and whether they match."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from toolkit.errors import ImageMissingError, MalformedInputError
from toolkit.images.recipe import library
from toolkit.images.store import store
from toolkit.model.base import Model
from toolkit.model.image import Verdict

BUILT, CHANGED, MISSING, BROKEN, FOREIGN = (
    "built",
    "recipe changed",
    "not built",
    "not whole",
    "no manifest",
)


class Listed(Model, frozen=True, kw_only=True):
    """A recipe, an image, or both.

    Attributes:
        state: ``built``, ``recipe changed`` (since it was built), ``not built``, ``not whole``, or
            ``no manifest`` (another tool's image).
        size: of the SIF in bytes.
        directory: of the image, if it is not the user's own.
        checks: number of passed checks and of all checks; None if the image was not checked.
    """

    name: str
    state: str
    summary: str = ""
    path: str | None = None
    size: int | None = None
    directory: str = ""
    built: str | None = None
    frameworks: dict[str, str] = {}
    checks: tuple[int, int] | None = None


def listing() -> tuple[Listed, ...]:
    """Return the shipped recipes and the images of the store and of shared directories, by name."""
    own = store.images_directory()
    recipes = store.list_recipes()
    places = {
        name: place
        for place in (*reversed(store.shared_directories()), own)
        for name in store.image_names(place)
    }
    names = sorted({*recipes, *places})
    return tuple(_listed(name, places.get(name, own), has_recipe=name in recipes) for name in names)


def count_passed(verdicts: Iterable[Verdict]) -> tuple[int, int]:
    """Return how many checks passed, and how many were made."""
    made = [verdict.outcome for verdict in verdicts if verdict.outcome != "unchecked"]
    return made.count("passed"), len(made)


def _listed(name: str, directory: Path, *, has_recipe: bool) -> Listed:
    resolved = library.load(name) if has_recipe else None
    path = directory / f"{name}.sif"
    listed = Listed(
        name=name,
        state=BROKEN,
        summary=resolved.summary if resolved else "",
        path=str(path),
        directory="" if directory == store.images_directory() else str(directory),
    )
    if not path.exists():
        return msgspec.structs.replace(listed, state=MISSING, path=None, directory="")
    try:
        image = store.find(str(path))
    except (ImageMissingError, MalformedInputError):
        return listed
    manifest = image.manifest
    if manifest is None:
        size = path.stat().st_size
        return msgspec.structs.replace(listed, state=FOREIGN, path=image.path, size=size)
    state = BUILT
    if manifest.origin and not manifest.recipe_hash:
        state = FOREIGN
    elif resolved and library.hash_recipe(resolved) != manifest.recipe_hash:
        state = CHANGED
    checks = count_passed(manifest.verdicts)
    return msgspec.structs.replace(
        listed,
        state=state,
        path=image.path,
        size=manifest.size,
        built=manifest.built,
        frameworks=manifest.frameworks,
        checks=checks if checks[1] else None,
    )
