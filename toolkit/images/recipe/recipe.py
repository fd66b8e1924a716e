"""Recipes of images, as users write them: ``recipes/<name>.toml``.

The keys of a base and of a step are defined by their blocks, not in this module.
"""

from __future__ import annotations

from typing import Any

from toolkit.model.base import Model


class Space(Model, frozen=True, kw_only=True):
    """The disk space that a build needs, in MB (powers of 1000); it is checked before the build."""

    image: int = 1000
    build: int = 4000


class Recipe(Model, frozen=True, kw_only=True):
    """The recipe of an image.

    Attributes:
        summary: one line for users.
        extends: another recipe, by name or path: its base, space and times are the defaults of this
            one, and its steps come first.
        features: names of additions that suit any recipe; their steps come last.
        base: the base of the image: ``kind`` names it (``images/recipe/bases.py``), the other keys
            are its own.
        steps: the steps in order: ``block`` names each (``images/recipe/blocks.py``), the other
            keys are its own.
        space: the disk space that a build needs.
        seconds: approximate duration of each step, by its name; a first build shows it, later
            builds show the last build's times.
        overrides: versions of Python packages that other steps bring, by name, also those of the
            recipe that it extends: ``torch = "2.14.0+cpu"``. What was built on them is built again.
    """

    summary: str
    extends: str | None = None
    features: tuple[str, ...] = ()
    base: dict[str, Any] = {}
    steps: tuple[dict[str, Any], ...] = ()
    space: Space | None = None
    seconds: dict[str, float] = {}
    overrides: dict[str, str] = {}


class Feature(Model, frozen=True, kw_only=True):
    """An addition that suits any recipe: ``recipes/features/<name>.toml``.

    Attributes:
        summary: one line for users.
        steps: as a recipe's.
        image, build: additional disk space, in MB.
        seconds: approximate duration of its steps.
    """

    summary: str
    steps: tuple[dict[str, Any], ...]
    image: int = 0
    build: int = 0
    seconds: dict[str, float] = {}
