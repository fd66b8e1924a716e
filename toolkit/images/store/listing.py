"""The rows of `image list` and `image search`: recipes, images and NGC releases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import ImageMissingError, MalformedInputError
from toolkit.images.recipe import catalogue, library
from toolkit.images.store import store
from toolkit.model.base import Model
from toolkit.model.image import Verdict

_SHOWN = ("version", "python", "cuda", "nccl", "openmpi", "driver")  # facts of a release


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
    own, recipes = store.images_directory(), store.list_recipes()
    places = {
        name: place
        for place in (*reversed(store.shared_directories()), own)
        for name in store.image_names(place)
    }
    listed: list[Listed] = []
    for name in sorted({*recipes, *places}):
        resolved = library.load(name) if name in recipes else None
        row = Listed(name=name, state="not built", summary=resolved.summary if resolved else "")
        place = places.get(name)
        if place and (place / f"{name}.sif").exists():
            recipe_hash = library.hash_recipe(resolved) if resolved else ""
            directory = "" if place == own else str(place)
            row = _with_image(replace(row, directory=directory), place / f"{name}.sif", recipe_hash)
        listed.append(row)
    return tuple(listed)


def count_passed(verdicts: Iterable[Verdict]) -> tuple[int, int]:
    """Return how many checks passed, and how many were made."""
    made = [verdict.outcome for verdict in verdicts if verdict.outcome != "unchecked"]
    return made.count("passed"), len(made)


def _with_image(row: Listed, path: Path, recipe_hash: str) -> Listed:
    """Return a row with the facts of its image; the hash is that of its recipe, if it has one."""
    try:
        manifest = store.find(str(path)).manifest
    except (ImageMissingError, MalformedInputError):
        return replace(row, state="not whole", path=str(path))
    size = manifest.size if manifest else path.stat().st_size
    row = replace(row, state="no manifest", path=str(path.absolute()), size=size)
    if manifest is None:
        return row
    if manifest.recipe_hash or not manifest.origin:
        is_current = recipe_hash in ("", manifest.recipe_hash)
        row = replace(row, state="built" if is_current else "recipe changed")
    checks = count_passed(manifest.verified)
    return replace(
        row,
        built=manifest.built,
        frameworks=manifest.frameworks,
        checks=checks if checks[1] else None,
    )


class CatalogueEntry(Model, frozen=True, kw_only=True):
    """A recipe, an image or a release that can be found by a search.

    Attributes:
        name: the name by which it is built, shown or pulled.
        kind: ``recipe``, ``image`` or ``release``.
        summary: one line.
    """

    name: str
    kind: str
    summary: str


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Return all entries: recipes and images first."""
    entries: list[CatalogueEntry] = []
    for row in listing():
        kind = "recipe" if row.summary else "image"
        summary = f"{row.summary or ', '.join(row.frameworks)} ({row.state})"
        entries.append(CatalogueEntry(name=row.name, kind=kind, summary=summary))
    for release in catalogue.list_releases():
        known = ", ".join(
            f"{name} {release.value(name)}" for name in _SHOWN if name in release.facts
        )
        summary = f"NGC {release.framework} {release.release}: {known}"
        entries.append(CatalogueEntry(name=release.name, kind="release", summary=summary))
    return tuple(entries)


def matching(entries: Iterable[CatalogueEntry], words: Iterable[str]) -> tuple[CatalogueEntry, ...]:
    """Return the entries that have every word in their name or summary."""
    lowered = [word.lower() for word in words]
    return tuple(
        entry
        for entry in entries
        if all(word in f"{entry.name} {entry.summary}".lower() for word in lowered)
    )
