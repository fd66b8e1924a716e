"""Resolve a recipe: turn each step into its block's output. Pure; ``library`` reads the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from toolkit.images.recipe.bases import BASES, Base, LocalImage
from toolkit.images.recipe.block import IN_BUILD, BlockOutput, more_suffix
from toolkit.images.recipe.blocks import BLOCKS
from toolkit.images.recipe.blocks.pip import Pip
from toolkit.images.recipe.names import is_image_name
from toolkit.images.recipe.protection import override, protect, replace_first
from toolkit.images.recipe.recipe import Feature, Recipe, Space
from toolkit.model.base import AnyModel, BadDataError, Model, convert

# What the definition, and the progress of a build, call by these names already.
RESERVED = ("base", "apt", "compilers", "clean", "checks", "pack", "convert")


class Resolved(Model, frozen=True, kw_only=True):
    """A recipe whose keys, base and steps are all valid.

    Attributes:
        outputs: of the blocks, in the order of the image.
        dropped: steps that the base makes needless, since it holds what they bring: ``openmpi``.
        whole: the recipe with those that it extends and its features, as it would be written
            without them.
    """

    name: str
    summary: str
    base: Base
    outputs: tuple[BlockOutput, ...]
    space: Space
    seconds: dict[str, float]
    dropped: tuple[str, ...] = ()
    whole: Recipe


def extend_recipe(base: Recipe, recipe: Recipe) -> Recipe:
    """Return ``recipe`` merged with the recipe that it extends."""
    return replace(
        recipe,
        extends=None,
        base=recipe.base or base.base,
        features=tuple(dict.fromkeys((*base.features, *recipe.features))),
        steps=(*base.steps, *recipe.steps),
        space=recipe.space or base.space,
        seconds={**base.seconds, **recipe.seconds},
        overrides={**base.overrides, **recipe.overrides},
    )


def add_features(recipe: Recipe, features: Iterable[Feature]) -> Recipe:
    """Return ``recipe`` with the steps of its features."""
    for feature in features:
        space = recipe.space or Space()
        recipe = replace(
            recipe,
            features=(),
            steps=(*recipe.steps, *feature.steps),
            space=Space(image=space.image + feature.image, build=space.build + feature.build),
            seconds={**feature.seconds, **recipe.seconds},
        )
    return recipe


def resolve(name: str, recipe: Recipe) -> Resolved:
    """Turn every step into its output.

    Args:
        name: of the recipe: the file's name without ``.toml``.
        recipe: merged with those that it extends and its features.

    Raises:
        BadDataError: A value in it is unknown or impossible; gives the key.
    """
    if not is_image_name(name):
        raise BadDataError(
            f"{name!r} cannot be the name of a recipe: letters, digits and . _ + - only"
        )
    if not recipe.base:
        raise BadDataError("a recipe needs a base, or another recipe that it extends", "base")
    for key, text in _strings(
        {
            "summary": recipe.summary,
            "base": recipe.base,
            "steps": recipe.steps,
            "overrides": recipe.overrides,
        }
    ):
        _require_printable(key, text)
    base = _variant(recipe.base, "base", "kind", BASES)
    for number, step in enumerate(recipe.steps):
        _variant(step, f"steps[{number}]", "block", BLOCKS)
    steps = replace_first(override(recipe.steps, recipe.overrides))
    blocks = [
        _variant(step, f"steps[{number}]", "block", BLOCKS) for number, step in enumerate(steps)
    ]
    replaced = {name for block in blocks if isinstance(block, Pip) for name in block.replaces}
    wanted = [(str(step["block"]), block) for step, block in zip(steps, blocks, strict=True)]
    # The base's own Horovod was built for the framework that is replaced.
    holds = base.output().holds - (
        {"horovod"} if replaced & {"torch", "tensorflow", "tensorflow-cpu"} else set()
    )
    needed = tuple(
        block.output_on(holds) for kind, block in wanted if not block.is_held(kind, holds)
    )
    outputs = protect(needed, has_python="python" in holds or isinstance(base, LocalImage))
    _require_different_names(outputs)
    return Resolved(
        name=name,
        summary=recipe.summary,
        base=base,
        outputs=outputs,
        space=recipe.space or Space(),
        seconds=recipe.seconds,
        dropped=tuple(dict.fromkeys(kind for kind, block in wanted if block.is_held(kind, holds))),
        whole=recipe,
    )


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


def _require_different_names(outputs: tuple[BlockOutput, ...]) -> None:
    # The steps that `stages` adds to a step are called after it.
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
