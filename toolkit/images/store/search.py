"""Search for recipes, images and NGC releases: ``pytorch cuda>=12 python:3.10``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from toolkit.errors import UsageError
from toolkit.images.recipe import catalogue, library
from toolkit.images.recipe.bases import Ngc
from toolkit.images.recipe.catalogue import Release
from toolkit.images.store import listing
from toolkit.model.base import Model
from toolkit.units import compare

FILTERS = (
    "framework",
    "version",
    "python",
    "cuda",
    "nccl",
    "openmpi",
    "driver",
    "release",
    "ubuntu",
    "horovod",
    "kind",
)
_FILTER = re.compile(r"(?P<name>[a-z]+)(?P<how>>=|<=|:|=|>|<)(?P<value>[^:=<>].*)\Z")
_COMPARED = {">=": (0, 1), "<=": (-1, 0), ">": (1,), "<": (-1,)}


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
    return lambda entry: _fits({**entry.facts, "kind": entry.kind}, name, how, value)


def _fits(facts: Mapping[str, str], name: str, how: str, value: str) -> bool:
    """Return whether a fact matches a filter; an unknown fact matches none."""
    known = facts.get(name)
    if known is None:
        return False
    if how in _COMPARED:
        return compare(known, value) in _COMPARED[how]
    return known.lower() == value.lower() or (
        how == ":" and bool(re.match(r"\d", value)) and compare(known, value) == 0
    )


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Return all entries: recipes and images first."""
    return (*_own(), *(_of_release(release) for release in catalogue.list_releases()))


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
