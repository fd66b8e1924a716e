"""A recipe, resolved: every step of it turned into what a definition gets from it. Pure: the reading is done by ``store``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.images.bases import BASES, Base
from toolkit.images.blocks import BLOCKS
from toolkit.images.piece import Piece
from toolkit.model.base import AnyModel, BadDataError, Model, convert
from toolkit.model.recipe import Recipe, Space

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
# What the definition, and the progress of a build, call by these names already.
RESERVED = ("base", "apt", "clean", "checks", "pack")


class Resolved(Model, frozen=True, kw_only=True):
    """A recipe whose every part is known and valid."""

    name: str
    summary: str
    base: Base
    pieces: tuple[Piece, ...]
    space: Space
    seconds: dict[str, float]


def resolve(name: str, recipe: Recipe) -> Resolved:
    """Turn every step into its piece.

    Args:
        name: of the recipe: the file's name without ``.toml``.

    Raises:
        BadDataError: something in it is unknown or impossible; with the key.
    """
    if not _NAME.match(name):
        raise BadDataError(f"{name!r} cannot be the name of a recipe: letters, digits and . _ + - only")
    for key, text in _strings({"summary": recipe.summary, "base": recipe.base, "steps": recipe.steps}):
        _require_printable(key, text)
    base = _variant(recipe.base, "base", "kind", BASES)
    blocks = [_variant(step, f"steps[{number}]", "block", BLOCKS) for number, step in enumerate(recipe.steps)]
    pieces = tuple(block.piece() for block in blocks)
    _require_different_names(pieces)
    return Resolved(name=name, summary=recipe.summary, base=base, pieces=pieces, space=recipe.space, seconds=recipe.seconds)


def _variant(data: Mapping[str, Any], place: str, selector: str, known: Mapping[str, type[AnyModel]]) -> AnyModel:
    """The model of ``known`` that the key ``selector`` names, with the other keys as its options."""
    chosen = data.get(selector)
    if chosen is None:
        raise BadDataError(f"the key {selector!r} is missing; it is one of {', '.join(sorted(known))}", f"{place}.{selector}")
    if chosen not in known:
        raise BadDataError(f"there is no {selector} {chosen!r}", f"{place}.{selector}", tuple(known), str(chosen))
    options = {key: value for key, value in data.items() if key != selector}
    try:
        return convert(options, known[chosen])
    except BadDataError as error:
        choices = (selector, *error.choices) if error.choices else ()
        raise BadDataError(str(error), f"{place}.{error.key}".rstrip("."), choices, error.value) from None


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string within plain data, with the path of its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _strings(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _strings(inner, f"{key}[{number}]")


def _require_printable(key: str, text: str) -> None:
    """A definition is made of lines: what could end one, or hide in one, is refused."""
    bad = next((character for character in text if not character.isprintable()), None)
    if bad is not None:
        name = {"\n": "a line break", "\t": "a tab", "\0": "a NUL byte"}.get(bad, f"the character U+{ord(bad):04X}")
        raise BadDataError(f"{text!r} holds {name}, which a definition cannot carry", key)


def _require_different_names(pieces: tuple[Piece, ...]) -> None:
    seen = set(RESERVED)
    for number, piece in enumerate(pieces):
        if piece.lines and piece.name in seen:
            raise BadDataError(f"the name {piece.name!r} is taken; give this step another `name`", f"steps[{number}].name")
        seen.add(piece.name)
