"""Import an existing Dockerfile or Singularity definition as a recipe that means the same.

Every instruction becomes a step of its own, in the file's order, and runs in the directory, with
the variables, the shell and the user that the engine gives it. What a recipe cannot carry is named
with its line. Where a later step could need it (files, mounts, stages), nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import ConfigError
from toolkit.files import read_text
from toolkit.images.recipe.drafts import format_step
from toolkit.images.recipe.importers.steps import UnsupportedLine
from toolkit.model.base import Model, toml_value
from toolkit.quoting import shell


class ImportedRecipe(Model, frozen=True, kw_only=True):
    """A recipe's text, and the lines of the file that are not in it."""

    recipe: str
    unsupported: tuple[UnsupportedLine, ...]


def import_file(path: Path, name: str) -> ImportedRecipe:
    """Read a Dockerfile or a definition.

    Args:
        path: of the file; sources that it copies are relative to its directory.
        name: of the recipe.

    Raises:
        ConfigError: It cannot be read, is neither, or a step needs what no recipe carries.
        UsageError: It has several stages.
    """
    try:
        text = read_text(path).replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the file cannot be read: {reason}",
            place=str(path),
            next_step="the path of a Dockerfile or a definition that you may read (ls -l shows it)",
        ) from None
    words = [line.split(":")[0].split() for line in text.splitlines()]
    first = [line[0].lower() for line in words if line]
    if "bootstrap" in first:
        from toolkit.images.recipe.importers.definition import import_definition as read
    elif "from" in first:
        from toolkit.images.recipe.importers.dockerfile import import_dockerfile as read
    else:
        raise ConfigError(
            "this is neither a Dockerfile (no FROM) nor a definition (no Bootstrap)",
            place=str(path),
            next_step=f"a recipe is built: toolkit image build {shell(str(path))}"
            if path.suffix == ".toml"
            else "the path of a Dockerfile or a definition; toolkit image new writes a recipe",
        )
    base, steps, unsupported = read(text, path)
    return ImportedRecipe(
        recipe=_written(name, path, base, steps),
        unsupported=tuple(sorted(unsupported, key=lambda entry: entry.line)),
    )


def _written(
    name: str, path: Path, base: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]
) -> str:
    lines = [
        f"# Taken from {path.name}. After a change: toolkit image build {name}.toml",
        f"summary = {toml_value(f'from {path.name}')}",
        "",
        "[base]",
        *(f"{key} = {toml_value(value)}" for key, value in base.items()),
    ]
    return "\n".join((*lines, *(line for step in steps for line in format_step(step)))) + "\n"
