"""What people write of an image: ``recipes/<name>.toml``. What a base and a step may hold is known to their blocks, not here."""

from __future__ import annotations

from typing import Any

from toolkit.model.base import Model


class Space(Model, frozen=True, kw_only=True):
    """What a build needs on disk, in MB (powers of 1000): looked at before it begins."""

    image: int = 1000
    build: int = 4000


class Recipe(Model, frozen=True, kw_only=True):
    """An image as it is written down.

    Attributes:
        summary: one line for people.
        extends: another recipe, by name or path: its base, space and times hold where this one says nothing, its steps come first.
        features: things that can be added to any recipe, by name; their steps come last.
        base: what the image begins as: ``kind`` names it (``images/bases.py``), the other keys are its own.
        steps: what is put on it, in order: ``block`` names each (``images/recipe/blocks``), the other keys are its own.
        space: what a build needs on disk.
        seconds: about how long each step takes, by its name; shown in a first build, afterwards the last build's times are.
    """

    summary: str
    extends: str | None = None
    features: tuple[str, ...] = ()
    base: dict[str, Any] = {}
    steps: tuple[dict[str, Any], ...] = ()
    space: Space | None = None
    seconds: dict[str, float] = {}


class Feature(Model, frozen=True, kw_only=True):
    """Something that can be added to any recipe: ``recipes/features/<name>.toml``.

    Attributes:
        summary: one line for people.
        steps: as a recipe's.
        image, build: what it needs more on disk, in MB.
        seconds: about how long its steps take.
    """

    summary: str
    steps: tuple[dict[str, Any], ...]
    image: int = 0
    build: int = 0
    seconds: dict[str, float] = {}
