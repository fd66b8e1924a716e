"""Finding recipes, images and NGC releases by words: ``pytorch cuda>=12 python:3.10``. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from toolkit.errors import UsageError
from toolkit.model.base import Model
from toolkit.versions import compare

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
_FILTER = re.compile(r"(?P<name>[a-z]+)(?P<how>>=|<=|:|=|>|<)(?P<value>.+)\Z")
_COMPARED = {">=": (0, 1), "<=": (-1, 0), ">": (1,), "<": (-1,)}


class CatalogueEntry(Model, frozen=True, kw_only=True):
    """Something that can be found.

    Attributes:
        name: by which it is built, shown or pulled.
        kind: ``recipe``, ``image`` or ``release``.
        summary: one line.
        facts: by the names of ``FILTERS``; what is not known is not there.
    """

    name: str
    kind: str
    summary: str
    facts: dict[str, str] = {}


def matching(things: Iterable[CatalogueEntry], words: Iterable[str]) -> tuple[CatalogueEntry, ...]:
    """The things that every word fits.

    Raises:
        UsageError: a filter has no such name.
    """
    tests = [_test(word) for word in words]
    return tuple(thing for thing in things if all(test(thing) for test in tests))


def _test(word: str) -> Callable[[CatalogueEntry], bool]:
    found = _FILTER.match(word)
    if not found:
        return lambda thing: word.lower() in f"{thing.name} {thing.summary}".lower()
    name, how, value = found["name"], found["how"], found["value"]
    if name not in FILTERS:
        raise UsageError(
            f"nothing is known by {name}",
            place=word,
            choices=FILTERS,
            value=name,
            next_step=f"one of {', '.join(FILTERS)}",
        )
    return lambda thing: _fits({**thing.facts, "kind": thing.kind}, name, how, value)


def _fits(facts: Mapping[str, str], name: str, how: str, value: str) -> bool:
    """What is not known fits nothing."""
    known = facts.get(name)
    if known is None:
        return False
    if how in _COMPARED:
        return compare(known, value) in _COMPARED[how]
    return known.lower() == value.lower() or (
        how == ":" and bool(re.match(r"\d", value)) and compare(known, value) == 0
    )
