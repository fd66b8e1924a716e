"""Recipes on disk: find them by name or path, read them, plan them, and render their definitions.

A recipe is read with the recipes that it extends and its features.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from toolkit import __version__
from toolkit.config import package_directory, shipped
from toolkit.errors import ConfigError, UnknownImageError
from toolkit.files import config_error, read_text, read_toml
from toolkit.images.recipe import apptainer_def
from toolkit.images.recipe.bases import Base
from toolkit.images.recipe.names import list_features, list_recipes
from toolkit.images.recipe.plan import Plan, make_plan
from toolkit.images.recipe.plan import hash_recipe as hash_recipe
from toolkit.images.recipe.recipe import Feature, Recipe, Space
from toolkit.images.recipe.sources import read_source
from toolkit.model.base import BadDataError

# Format -> the suffix of the files in ``containers``.
FORMATS = {"apptainer": ".def", "docker": ".Dockerfile"}


def recipe_path(recipe: str) -> Path:
    """Return the file of a shipped recipe, or the path itself if it ends in ``.toml``.

    Raises:
        UnknownImageError: There is no such recipe; names the nearest.
    """
    if recipe.endswith(".toml"):
        return Path(recipe).expanduser()
    path = shipped("recipes") / f"{recipe}.toml"
    if "/" in recipe or not os.path.isfile(path):  # noqa: PTH113 - of any text
        file = Path(f"{recipe}.toml")
        raise UnknownImageError(
            f"no recipe is called {recipe}",
            choices=list_recipes(),
            value=recipe,
            next_step=f"./{file}, if you mean the file in this directory"
            if file.is_file()
            else "toolkit image list",
        )
    return path


def load(recipe: str, features: Iterable[str] = ()) -> Plan:
    """Read and plan a recipe, by name or path.

    Args:
        recipe: a name or a path.
        features: further ones than the recipe names itself.

    Raises:
        UnknownImageError: There is no such recipe or feature.
        ConfigError: The file does not exist or is invalid; gives the file, the line, the key and
            the nearest valid one.
    """
    path = recipe_path(recipe)
    whole = _with_bases(path, read_toml(path, Recipe, named=True), (path.resolve(),))
    for feature in dict.fromkeys((*whole.features, *features)):
        whole = _with_feature(whole, feature)
    try:
        return plan_recipe(path.stem, whole, path.parent)
    except BadDataError as error:
        raise config_error(path, read_text(path), error) from None


def _with_bases(path: Path, recipe: Recipe, within: tuple[Path, ...]) -> Recipe:
    """Return a recipe merged with those that it extends, and with absolute paths of sources."""
    recipe = replace(recipe, steps=tuple(_with_source(step, path.parent) for step in recipe.steps))
    if recipe.extends is None:
        return recipe
    try:
        is_file = recipe.extends.endswith(".toml")
        other = path.parent / recipe.extends if is_file else recipe_path(recipe.extends)
    except UnknownImageError as error:
        error.place = f"{path}, key extends"
        raise
    if other.resolve() in within:
        circle = " -> ".join(recipe_file.stem for recipe_file in (*within, other))
        raise ConfigError(
            f"recipes extend each other in a circle: {circle}", place=f"{path}, key extends"
        )
    base = read_toml(other, Recipe, named=True)
    return extend_recipe(_with_bases(other, base, (*within, other.resolve())), recipe)


def _with_source(step: dict[str, Any], directory: Path) -> dict[str, Any]:
    if step.get("block") != "copy" or not isinstance(step.get("source"), str):
        return step
    return {**step, "source": os.path.abspath(directory / step["source"])}  # noqa: PTH100


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


def _with_feature(recipe: Recipe, name: str) -> Recipe:
    """Return ``recipe`` with the steps of a shipped feature.

    Raises:
        UnknownImageError: There is no such feature; names the nearest.
    """
    names = list_features()
    if name not in names:
        raise UnknownImageError(
            f"no feature is called {name}",
            place="features",
            choices=names,
            value=name,
            next_step=f"one of {', '.join(names)}",
        )
    feature = read_toml(shipped("recipes") / "features" / f"{name}.toml", Feature)
    space = recipe.space or Space()
    return replace(
        recipe,
        features=(),
        steps=(*recipe.steps, *feature.steps),
        space=Space(image=space.image + feature.image, build=space.build + feature.build),
        seconds={**feature.seconds, **recipe.seconds},
    )


def read_check_scripts() -> dict[str, str]:
    """Return the text of every check, by file name."""
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in package_directory("images/checks").iterdir()
        if path.is_file()
    }


def plan_recipe(name: str, recipe: Recipe, directory: Path = Path()) -> Plan:
    """Return the plan of a whole recipe; errors as of ``make_plan``.

    Args:
        name: of the recipe.
        recipe: with absolute paths of sources.
        directory: of the recipe's file.
    """
    paths = [step.get("source") for step in recipe.steps if step.get("block") == "copy"]
    sources = {path: read_source(Path(path), directory) for path in paths if isinstance(path, str)}
    return make_plan(name, recipe, read_check_scripts(), sources)


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels that the image of a recipe gets."""
    return {
        "toolkit.recipe": plan.name,
        "toolkit.recipe-hash": hash_recipe(plan),
        "toolkit.version": __version__,
    }


def render(plan: Plan, form: str = "apptainer", base: Base | None = None) -> str:
    """Return the definition of a recipe, as it is committed and as it is built.

    The same recipe gives the same bytes. The texts are put together by plain functions, not by a
    template: importing a template engine alone takes longer than the whole command may that prints
    a definition, and there is one order of parts, whose lines the blocks have written already.

    Args:
        plan: of the recipe.
        form: one of ``FORMATS``.
        base: the exact base to take in place of the recipe's.
    """
    exact = replace(plan, base=base) if base else plan
    if form == "docker":
        from toolkit.images.recipe import dockerfile  # most definitions are Apptainer's

        return dockerfile.render(exact, labels(plan))
    return apptainer_def.render(exact, labels(plan))


def definition_path(recipe: str, form: str = "apptainer") -> Path:
    """Return the path of a recipe's rendered definition.

    A shipped recipe's is in ``containers``, another's is beside it.
    """
    suffix = FORMATS[form]
    if recipe.endswith(".toml"):
        return Path(recipe).expanduser().with_suffix(suffix)
    return shipped("containers") / f"{recipe}{suffix}"
