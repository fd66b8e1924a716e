"""Check that a recipe's keys, texts and names can be planned. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.images.recipe.bases import BASES, Base
from toolkit.images.recipe.block import IN_BUILD, Block, Step, more_suffix
from toolkit.images.recipe.blocks import BLOCKS
from toolkit.images.recipe.names import is_image_name
from toolkit.images.recipe.recipe import Recipe
from toolkit.model.base import AnyModel, BadDataError, convert

# What the definition, and the progress of a build, call by these names already.
RESERVED = ("base", "apt", "compilers", "clean", "checks", "pack", "convert")


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
        _require_printable(key, text)
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
    chosen = data.get(selector)
    if chosen is None:
        raise BadDataError(
            f"the key {selector!r} is missing; it is one of {', '.join(sorted(known))}",
            f"{place}.{selector}",
        )
    if chosen not in known:
        raise BadDataError(
            f"there is no {selector} {chosen!r}", f"{place}.{selector}", tuple(known), str(chosen)
        )
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


def _require_printable(key: str, text: str) -> None:
    """Raise for a character that could end a line of a definition, or hide in one."""
    bad = next((character for character in text if not character.isprintable()), None)
    if bad is not None:
        name = {"\n": "a line break", "\t": "a tab", "\0": "a NUL byte"}.get(
            bad, f"the character U+{ord(bad):04X}"
        )
        raise BadDataError(f"{text!r} holds {name}, which a definition cannot carry", key)


def require_different_names(outputs: Sequence[Step]) -> None:
    """Raise for a step whose name another step, or one that is made of it, has."""
    built = {f"{output.name}-build" for output in outputs if output.build_lines}
    bare = Counter(output.name for output in outputs if output.packages and not output.lines)
    more = {f"{name}{more_suffix(number)}" for name in bare for number in range(1, bare[name] + 1)}
    taken = {*RESERVED, *built, *more}
    for number, output in enumerate(outputs):
        if output.lines and (output.name in taken or output.name.startswith(IN_BUILD)):
            raise BadDataError(
                f"the name {output.name!r} is taken; give this step another `name`",
                f"steps[{number}].name",
            )
        taken.add(output.name)
