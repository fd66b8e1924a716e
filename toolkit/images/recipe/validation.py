"""Check that a recipe's keys, texts and names can be planned. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.images.recipe.bases import BASES, Base
from toolkit.images.recipe.block import Block, Step
from toolkit.images.recipe.blocks import BLOCKS
from toolkit.images.recipe.names import is_image_name
from toolkit.images.recipe.recipe import Recipe
from toolkit.model.base import AnyModel, BadDataError, convert

# What the progress of a build calls by these names.
RESERVED = ("base", "checks", "pack", "convert")


def read_base(name: str, recipe: Recipe) -> Base:
    """Return a recipe's base, once its name and its texts are known to fit a definition.

    Raises:
        BadDataError: Something is invalid; gives the key.
    """
    if not is_image_name(name):
        raise BadDataError(
            f"{name!r} cannot be the name of a recipe: letters, digits and . _ + - only"
        )
    if not recipe.base:
        raise BadDataError("a recipe needs a base, or another recipe that it extends", "base")
    texts = {key: getattr(recipe, key) for key in ("summary", "base", "steps", "overrides")}
    for key, text in _strings(texts):
        if not text.isprintable():  # a character could end a line of a definition, or hide in one
            raise BadDataError(f"{text!r} holds what a definition cannot carry", key)
    return _variant(recipe.base, "base", "kind", BASES)


def read_blocks(steps: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the block of each step.

    Raises:
        BadDataError: A step is invalid; gives the key.
    """
    return [
        _variant(step, f"steps[{number}]", "block", BLOCKS) for number, step in enumerate(steps)
    ]


def _variant(
    data: Mapping[str, Any], place: str, selector: str, known: Mapping[str, type[AnyModel]]
) -> AnyModel:
    """Return the model that the key ``selector`` names, with the other keys as its options."""
    chosen = str(data.get(selector, ""))
    if chosen not in known:
        text = f"{selector} must be one of {', '.join(sorted(known))}"
        raise BadDataError(text, f"{place}.{selector}", tuple(known), chosen)
    options = {key: value for key, value in data.items() if key != selector}
    try:
        return convert(options, known[chosen])
    except BadDataError as error:
        choices = (selector, *error.choices) if error.choices else ()
        raise BadDataError(
            str(error), f"{place}.{error.key}".rstrip("."), choices, error.value
        ) from None


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string within plain data, with the path of its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _strings(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _strings(inner, f"{key}[{number}]")


def require_different_names(steps: Iterable[Step]) -> None:
    """Raise if two steps of a plan, or a step and what the builder does, have one name."""
    counted = Counter((*RESERVED, *(step.name for step in steps)))
    name, count = counted.most_common(1)[0]
    if count > 1:
        raise BadDataError(
            f"two steps are called {name!r}: leave one out, or give it another `name`", "steps"
        )
