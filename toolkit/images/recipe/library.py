"""Recipes on disk: find them by name or path, read them, and render their definitions.

A recipe is read with the recipes that it extends and its features.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from toolkit import __version__
from toolkit.config import package_directory, shipped
from toolkit.errors import ConfigError, UnknownImageError
from toolkit.files import config_error, read_text, read_toml
from toolkit.images.recipe import definitions
from toolkit.images.recipe.names import list_features, list_recipes
from toolkit.images.recipe.recipe import Feature, Recipe
from toolkit.images.recipe.resolve import Resolved, add_features, extend_recipe, resolve
from toolkit.images.recipe.stages import Stages, derive_stages
from toolkit.model.base import BadDataError, from_toml


def recipe_path(recipe: str) -> Path:
    """Return the file of a shipped recipe, or the path itself if it ends in ``.toml``.

    Raises:
        UnknownImageError: There is no such recipe; names the nearest.
    """
    if recipe.endswith(".toml"):
        return Path(recipe).expanduser()
    names = list_recipes()
    if recipe not in names:
        file = Path(f"{recipe}.toml")
        raise UnknownImageError(
            f"no recipe is called {recipe}",
            choices=names,
            value=recipe,
            next_step=f"./{file}, if you mean the file in this directory"
            if file.is_file()
            else "toolkit image list",
        )
    return shipped("recipes") / f"{recipe}.toml"


def load(recipe: str, features: Iterable[str] = ()) -> Resolved:
    """Read and resolve a recipe, by name or path.

    Args:
        recipe: a name or a path.
        features: further ones than the recipe names itself.

    Raises:
        UnknownImageError: There is no such recipe or feature.
        ConfigError: The file does not exist or is invalid; gives the file, the line, the key and
            the nearest valid one.
    """
    path = recipe_path(recipe)
    text = _text(path)
    try:
        whole = _with_bases(path, from_toml(text, Recipe), (path.resolve(),))
        wanted = dict.fromkeys((*whole.features, *features))
        return resolve(path.stem, add_features(whole, map(load_feature, wanted)))
    except BadDataError as error:
        raise config_error(path, text, error) from None


def _with_bases(path: Path, recipe: Recipe, within: tuple[Path, ...]) -> Recipe:
    """Return a recipe merged with those that it extends."""
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
    text = _text(other)
    try:
        base = _with_bases(other, from_toml(text, Recipe), (*within, other.resolve()))
    except BadDataError as error:
        raise config_error(other, text, error) from None
    return extend_recipe(base, recipe)


def load_feature(name: str) -> Feature:
    """Return a shipped feature.

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
    return read_toml(shipped("recipes") / "features" / f"{name}.toml", Feature)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the recipe cannot be read: {reason}",
            place=str(path),
            next_step="the path of a recipe that you may read (ls -l shows it), or a name of "
            "toolkit image list",
        ) from None


def read_check_scripts() -> dict[str, str]:
    """Return the text of every check, by file name."""
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in package_directory("images/checks").iterdir()
        if path.is_file()
    }


def build_stages(resolved: Resolved) -> Stages:
    """Return the steps of a recipe."""
    return derive_stages(resolved, read_check_scripts())


def render(resolved: Resolved, form: str = "apptainer") -> str:
    """Return the definition of a recipe, as it is committed and as it is built.

    Args:
        resolved: the recipe.
        form: one of ``definitions.FORMATS``.
    """
    return definitions.render(resolved, build_stages(resolved), __version__, form)


def hash_recipe(resolved: Resolved) -> str:
    """Return a hash that changes when the image would."""
    return definitions.hash_stages(build_stages(resolved))


def definition_path(recipe: str, form: str = "apptainer") -> Path:
    """Return the path of a recipe's rendered definition.

    A shipped recipe's is in ``containers``, another's is beside it.
    """
    suffix = definitions.FORMATS[form].suffix
    if recipe.endswith(".toml"):
        return Path(recipe).expanduser().with_suffix(suffix)
    return shipped("containers") / f"{recipe}{suffix}"
