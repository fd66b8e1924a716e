"""The rows of `image list` and `image search`: recipes, images and NGC releases.

A search is of words and filters: ``pytorch cuda>=12 python:3.10``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import ImageMissingError, MalformedInputError, UsageError
from toolkit.images.recipe import catalogue, library
from toolkit.images.recipe.bases import Ngc
from toolkit.images.recipe.catalogue import Release
from toolkit.images.store import store
from toolkit.model.base import Model
from toolkit.model.image import Verdict
from toolkit.units import compare

FILTERS = (
    *("framework", "version", "python", "cuda", "nccl", "openmpi"),
    *("driver", "release", "ubuntu", "horovod", "kind"),
)
_FILTER = re.compile(r"(?P<name>[a-z]+)(?P<how>>=|<=|:|=|>|<)(?P<value>[^:=<>].*)\Z")
_COMPARED = {">=": (0, 1), "<=": (-1, 0), ">": (1,), "<": (-1,)}


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
        facts: by the names of ``FILTERS``; unknown facts are left out.
    """

    name: str
    kind: str
    summary: str
    facts: dict[str, str] = {}


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Return all entries: recipes and images first."""
    entries: list[CatalogueEntry] = []
    for row in listing():
        facts = {"framework": " ".join(row.frameworks)} if row.frameworks else {}
        base = library.load(row.name).base if row.summary else None
        if isinstance(base, Ngc):
            facts = {**_facts(base.find_release()), **facts}
        kind, summary = "image", row.state
        if row.summary:
            kind, summary = "recipe", f"{row.summary} ({row.state})"
        entries.append(CatalogueEntry(name=row.name, kind=kind, summary=summary, facts=facts))
    for release in catalogue.list_releases():
        facts = _facts(release)
        known = (
            f"{name} {facts[name]}"
            for name in ("version", "python", "cuda", "driver")
            if name in facts
        )
        summary = f"NGC {release.framework} {release.release}: {', '.join(known)}"
        entries.append(
            CatalogueEntry(name=release.name, kind="release", summary=summary, facts=facts)
        )
    return tuple(entries)


def _facts(release: Release) -> dict[str, str]:
    known = {
        name: value for name in FILTERS if name in release.facts and (value := release.value(name))
    }
    return {**known, "framework": release.framework, "release": release.release}


def matching(entries: Iterable[CatalogueEntry], words: Iterable[str]) -> tuple[CatalogueEntry, ...]:
    """Return the entries that match every word.

    Raises:
        UsageError: a word looks like a filter and is none, or names an unknown fact.
    """
    tests = [_test(word) for word in words]
    return tuple(entry for entry in entries if all(test(entry) for test in tests))


def _test(word: str) -> Callable[[CatalogueEntry], bool]:
    match = _FILTER.match(word)
    if not match and re.search(r"[:=<>]", word):
        raise UsageError(
            f"{word!r} is neither a word nor a filter",
            place="WORDS",
            next_step="FACT, one of : = < > <= >=, and VALUE, such as 'cuda>=12' or python:3.10",
        )
    if not match:
        return lambda entry: word.lower() in f"{entry.name} {entry.summary}".lower()
    name, how, value = match["name"], match["how"], match["value"]
    if name not in FILTERS:
        raise UsageError(
            f"nothing is known by {name}",
            place=word,
            choices=FILTERS,
            value=name,
            next_step=f"one of {', '.join(FILTERS)}",
        )
    return lambda entry: _fits(entry.kind if name == "kind" else entry.facts.get(name), how, value)


def _fits(known: str | None, how: str, value: str) -> bool:
    """Return whether a fact matches a filter; an unknown fact matches none."""
    if known is None:
        return False
    if how in _COMPARED:
        return compare(known, value) in _COMPARED[how]
    is_version = how == ":" and value[0].isdigit()
    return known.lower() == value.lower() or (is_version and compare(known, value) == 0)
