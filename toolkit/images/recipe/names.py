"""The names of shipped recipes and features, and the rule for names that become parts of paths.

It is apart from the store, so that printing a definition need not know of images.
"""

from __future__ import annotations

import re

from toolkit.config import shipped
from toolkit.errors import MalformedInputError, ToolkitError

# Files of an image are called NAME.failed.log, .NAME.note.json and the like: 255 bytes in all.
LONGEST = 128
_IMAGE = rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{LONGEST - 1}}}(?<!\.)\Z"
_FILE = r"[A-Za-z0-9_][A-Za-z0-9._+!-]{0,240}(?<!\.)\Z"


def list_recipes() -> tuple[str, ...]:
    """Return the recipes that came with the tool, sorted."""
    return tuple(sorted(path.stem for path in shipped("recipes").glob("*.toml")))


def list_features() -> tuple[str, ...]:
    """Return the features that came with the tool, sorted."""
    return tuple(sorted(path.stem for path in (shipped("recipes") / "features").glob("*.toml")))


def is_image_name(name: str) -> bool:
    """Return whether a name can be that of an image or a recipe: one plain part of a path."""
    return bool(re.match(_IMAGE, name))


def is_file_name(name: str) -> bool:
    """Return whether a name can be that of a package's file, such as a wheel."""
    return bool(re.match(_FILE, name))


def normalize_name(name: str) -> str:
    """Return the name of a Python package by which indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def require_image_name(
    name: str, place: str, *, error: type[ToolkitError] = MalformedInputError
) -> str:
    """Return ``name`` if a path may be made of it.

    Args:
        name: of an image or a recipe, from a registry, a manifest or the command line.
        place: where it comes from, for the message.
        error: the class of the error: ``UsageError`` for what the user typed.

    Raises:
        ToolkitError: it could name a file elsewhere, or one that confuses people and programs.
    """
    if is_image_name(name):
        return name
    raise error(
        f"{name[:LONGEST]!r} cannot be the name of an image",
        place=place,
        next_step=f"use letters, digits and . _ + -, at most {LONGEST}; "
        "the first is a letter or digit",
    )
