"""Catalogue entries: recipes, built images and NGC releases, each with its known facts."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.images.recipe import catalogue, library
from toolkit.images.recipe.bases import Ngc
from toolkit.images.store import listing
from toolkit.images.store.search import FILTERS, CatalogueEntry
from toolkit.model.catalogue import Release


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Return all entries: recipes and images first."""
    return (*_own(), *(_of_release(release) for release in catalogue.releases()))


def _own() -> Iterator[CatalogueEntry]:
    for listed in listing.listing():
        facts = {"framework": " ".join(listed.frameworks)} if listed.frameworks else {}
        if listed.summary:
            base = library.load(listed.name).base
            if isinstance(base, Ngc):
                facts = {**_facts(base.find_release()), **facts}
        shown = f"{listed.summary} ({listed.state})" if listed.summary else listed.state
        yield CatalogueEntry(
            name=listed.name,
            kind="recipe" if listed.summary else "image",
            summary=shown,
            facts=facts,
        )


def _of_release(release: Release) -> CatalogueEntry:
    known = [
        f"{name} {value}"
        for name in ("version", "python", "cuda", "driver")
        if (value := release.value(name))
    ]
    return CatalogueEntry(
        name=release.name,
        kind="release",
        summary=f"NGC {release.framework} {release.release}: {', '.join(known)}",
        facts=_facts(release),
    )


def _facts(release: Release) -> dict[str, str]:
    known = {
        name: value for name in FILTERS if name in release.facts and (value := release.value(name))
    }
    return {**known, "framework": release.framework, "release": release.release}
