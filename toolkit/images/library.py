"""Recipes on disk: found by name or path, read, and turned into definitions."""

from __future__ import annotations

from pathlib import Path

from toolkit import __version__
from toolkit.errors import ConfigError, UnknownImageError
from toolkit.files import config_error
from toolkit.images import definition
from toolkit.images.names import recipe_names
from toolkit.images.recipes import Resolved, resolve
from toolkit.model.base import BadDataError, from_toml
from toolkit.model.recipe import Recipe
from toolkit.resources import package_directory, shipped


def recipe_path(recipe: str) -> Path:
    """The file of a recipe that came with the tool, or the one that a path ending in ``.toml`` names.

    Raises:
        UnknownImageError: no recipe is called so; names the nearest.
    """
    if recipe.endswith(".toml"):
        return Path(recipe).expanduser()
    names = recipe_names()
    if recipe not in names:
        raise UnknownImageError(f"no recipe is called {recipe}", choices=names, value=recipe, next_step="toolkit image list")
    return shipped("recipes") / f"{recipe}.toml"


def load(recipe: str) -> Resolved:
    """Read and resolve a recipe, by name or path.

    Raises:
        UnknownImageError: no recipe is called so.
        ConfigError: it is not there, or broken; with the file, the line, the key and the nearest valid one.
    """
    path = recipe_path(recipe)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the recipe cannot be read: {reason}", place=str(path)) from None
    try:
        return resolve(path.stem, from_toml(text, Recipe))
    except BadDataError as error:
        raise config_error(path, text, error) from None


def scripts() -> dict[str, str]:
    """The text of every check, by file name."""
    return {path.name: path.read_text(encoding="utf-8") for path in package_directory("images/checks").iterdir() if path.is_file()}


def rendered(resolved: Resolved) -> str:
    """The definition of a recipe, as it is committed and as it is built."""
    return definition.render(resolved, scripts(), __version__)


def recipe_hash(resolved: Resolved) -> str:
    """What changes when the image would."""
    return definition.recipe_hash(resolved, scripts())


def definition_path(recipe: str) -> Path:
    """Where the rendered definition of a recipe lies: a shipped one's in ``containers``, another's beside it."""
    return Path(recipe).expanduser().with_suffix(".def") if recipe.endswith(".toml") else shipped("containers") / f"{recipe}.def"
