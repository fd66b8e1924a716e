"""The names of the recipes that came with the tool; apart from the store, so that printing a definition need not know of images."""

from __future__ import annotations

from toolkit.resources import shipped


def recipe_names() -> tuple[str, ...]:
    """The recipes that came with the tool, sorted."""
    return tuple(sorted(path.stem for path in shipped("recipes").glob("*.toml")))


def feature_names() -> tuple[str, ...]:
    """The features that came with the tool, sorted."""
    return tuple(sorted(path.stem for path in (shipped("recipes") / "features").glob("*.toml")))
