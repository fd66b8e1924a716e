"""The commands that write recipes: `toolkit image new`, `import` and `render`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.errors import UnknownImageError, UsageError
from toolkit.files import write_atomically
from toolkit.images.recipe import catalogue, library
from toolkit.images.recipe.drafts import draft
from toolkit.images.recipe.importers import import_file
from toolkit.images.recipe.library import FORMATS
from toolkit.images.recipe.names import list_recipes, require_image_name
from toolkit.images.recipe.plan import Plan
from toolkit.images.store import store


@click.command("new")
@click.argument("name")
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="IMAGE",
    help="A reference (nvcr.io/nvidia/pytorch:25.06-py3), a recipe or its .toml file, an image of "
    "`image list`, or a .sif file.",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    metavar="THING",
    help="horovod, or a feature such as jupyter; repeatable.",
)
@click.option(
    "--pip",
    "packages",
    multiple=True,
    metavar="REQUIREMENT",
    help="A package for pip; repeatable.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Directory for NAME.toml (default: the current directory).",
)
def new(
    name: str, origin: str, features: tuple[str, ...], packages: tuple[str, ...], directory: Path
) -> None:
    """Write a recipe that builds, on top of an image or a recipe.

    The file is NAME.toml, for `toolkit image build NAME.toml`.

    \b
    Examples:
      toolkit image new mine --from nvcr.io/nvidia/pytorch:25.06-py3 --with horovod --with jupyter
      toolkit image new mine --from pytorch_cpu --pip einops==0.8.1
    """
    path = _new_file(directory, name, place="NAME")
    text = draft(name, _file_of(origin, directory), features, packages, cwd=str(Path.cwd()))
    resolved = _write_recipe(path, text)
    console.say("written", str(path))
    if resolved.dropped:
        console.say("", f"the base has already: {', '.join(resolved.dropped)}")
    console.say("next", f"toolkit image build {path}")
    console.document(str(path))


def _file_of(origin: str, directory: Path) -> str:
    """Return the file of a built image, or of a recipe as seen from a directory; else the name."""
    if origin.endswith(".toml"):
        return os.path.relpath(Path(origin).expanduser(), directory)
    is_known = origin in list_recipes() or catalogue.find_by_name(origin) is not None
    if is_known or origin.endswith(".sif") or set(origin) & set("/:"):
        return origin
    try:
        return store.find(origin).path
    except UnknownImageError:
        return origin


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", help="Name of the recipe (default: from the name of the file).")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Directory for NAME.toml (default: the current directory).",
)
def import_recipe(file: Path, name: str | None, directory: Path) -> None:
    """Convert a Dockerfile or a Singularity definition to a recipe.

    What a recipe cannot hold is listed, with what to do instead.

    \b
    Examples:
      toolkit image import Dockerfile --name mine
      toolkit image import horovod.def
    """
    chosen = name or re.sub(r"[^A-Za-z0-9._+-]", "-", file.stem).strip("-.") or "imported"
    path = _new_file(directory, chosen, place="--name")
    draft = import_file(file, chosen)
    _write_recipe(path, draft.recipe)
    for unsupported in draft.unsupported:
        where = f"{file}:{unsupported.line}: " if unsupported.line else ""
        console.say("left out", f"{where}{unsupported.text}")
        console.say("", f"instead: {unsupported.instead}")
    console.say("written", str(path))
    console.say("next", f"toolkit image build {path}")
    console.document(str(path))


def _new_file(directory: Path, name: str, *, place: str) -> Path:
    """Return the path of a new recipe.

    Raises:
        UsageError: the name is not allowed, or there is such a file already.
    """
    path = directory / f"{require_image_name(name, place, error=UsageError)}.toml"
    if path.exists():
        raise UsageError(
            f"{path} exists already, and is not overwritten",
            place=place,
            next_step=f"another {'name' if place == 'NAME' else place}, or remove the file",
        )
    return path


def _write_recipe(path: Path, text: str) -> Plan:
    """Write a recipe, and return it resolved; if it is invalid, remove the file again."""
    write_atomically(path, text)
    try:
        return library.load(str(path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@click.command("render")
@click.argument("name", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(tuple(FORMATS)),
    help="Format of the definition (default: apptainer; for --write, both).",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    metavar="FEATURE",
    help="Add a feature; repeatable.",
)
@click.option("--all", "every", is_flag=True, help="All recipes that come with the toolkit.")
@click.option("--write", is_flag=True, help="Write the committed definitions again.")
def render(
    name: str | None,
    form: str | None,
    features: tuple[str, ...],
    every: bool,
    write: bool,
) -> None:
    """Show the definition that a recipe becomes.

    `apptainer build` or `docker build` reads it. The definitions of a recipe that came with the
    tool are committed as containers/NAME.def and containers/NAME.Dockerfile; those of your own
    recipes are beside the .toml file.

    \b
    Examples:
      toolkit image render pytorch_cpu
      toolkit image render pytorch_cpu --format docker --with jupyter
      toolkit image render --all --write
    """
    if every == (name is not None):
        raise UsageError(
            "name one recipe, or use --all",
            place="NAME",
            choices=list_recipes(),
            next_step="toolkit image render --help",
        )
    if features and (write or every):
        cause = "--with shows a definition; it does not go with --write, --all"
        raise UsageError(cause, place="--with")
    for recipe in list_recipes() if name is None else (name,):
        if not write:
            console.document(library.render(library.load(recipe, features), form or "apptainer"))
            continue
        resolved = library.load(recipe)
        for each in (form,) if form else FORMATS:
            path, text = library.definition_path(recipe, each), library.render(resolved, each)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_atomically(path, text)
                console.say("written", str(path))
