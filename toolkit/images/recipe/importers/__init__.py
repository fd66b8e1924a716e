"""Import an existing Dockerfile or Singularity definition as a recipe that means the same.

A definition becomes the recipe's base, which Apptainer itself builds. Every instruction of a
Dockerfile becomes a step of its own, in the file's order; the files that it copies are put beside
the recipe. What a recipe cannot carry is named with its line. Where a later step could need it
(mounts, stages), nothing is imported.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ConfigError
from toolkit.files import read_text
from toolkit.images.recipe.drafts import format_step
from toolkit.images.recipe.importers.dockerfile import DockerfileImport, UnsupportedLine
from toolkit.model.base import toml_value


def import_file(path: Path, files: Path) -> tuple[str, list[UnsupportedLine]]:
    """Return the recipe of a Dockerfile or a definition, and the lines that are not in it.

    Args:
        path: of the file; sources that it copies are relative to its directory.
        files: the directory for what it copies, beside the recipe: NAME.files. It is made if it is
            needed, and stays after an error.

    Raises:
        ConfigError: It cannot be read, is neither, or a step needs what no recipe carries.
    """
    try:
        text = read_text(path).replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read: {error}", place=str(path)) from None
    words = [line.split(":")[0].split() for line in text.splitlines()]
    first = [line[0].lower() for line in words if line]
    imported = DockerfileImport(path, files)
    if "bootstrap" in first:
        imported.base = {"kind": "definition", "path": str(path.absolute())}
    elif "from" in first:
        imported.run(text)
    else:
        reason = "this is neither a Dockerfile (no FROM) nor a definition (no Bootstrap)"
        raise ConfigError(reason, place=str(path))
    lines = [
        f"# Taken from {path.name}. After a change: toolkit image build {files.stem}.toml",
        f"summary = {toml_value(f'from {path.name}')}",
        "",
        "[base]",
        *(f"{key} = {toml_value(value)}" for key, value in imported.base.items()),
        *(line for step in imported.steps for line in format_step(step)),
    ]
    return "\n".join(lines) + "\n", sorted(imported.unsupported, key=lambda entry: entry.line)
