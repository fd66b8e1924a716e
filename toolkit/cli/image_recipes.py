"""The commands that write recipes: `toolkit image new`, `import` and `render`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from toolkit.images.recipe.resolve import Resolved


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
    from toolkit.images.recipe.drafts import draft

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
    import os

    from toolkit.errors import UnknownImageError
    from toolkit.images.recipe import catalogue
    from toolkit.images.recipe.names import list_recipes
    from toolkit.images.store import store

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
    import re

    from toolkit.images.recipe.importers import import_file

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


FORMS = ("apptainer", "docker")  # definitions.FORMATS, which a help text need not import


def _new_file(directory: Path, name: str, *, place: str) -> Path:
    """Return the path of a new recipe.

    Raises:
        UsageError: the name is not allowed, or there is such a file already.
    """
    from toolkit.images.recipe.names import require_image_name

    path = directory / f"{require_image_name(name, place, error=UsageError)}.toml"
    if path.exists():
        raise UsageError(
            f"{path} exists already, and is not overwritten",
            place=place,
            next_step=f"another {'name' if place == 'NAME' else place}, or remove the file",
        )
    return path


def _write_recipe(path: Path, text: str) -> Resolved:
    """Write a recipe, and return it resolved; if it is invalid, remove the file again."""
    from toolkit.files import write_atomically
    from toolkit.images.recipe import library

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
    type=click.Choice(FORMS),
    help="Format of the definition (default: apptainer; for --check and --write, both).",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    metavar="FEATURE",
    help="Add a feature; repeatable.",
)
@click.option("--all", "every", is_flag=True, help="All recipes that come with the toolkit.")
@click.option(
    "--check",
    is_flag=True,
    help="Only check: if a committed definition differs, show the differences and exit "
    "with code 78.",
)
@click.option("--write", is_flag=True, help="Write the committed definitions again.")
def render(
    name: str | None,
    form: str | None,
    features: tuple[str, ...],
    every: bool,
    check: bool,
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
      toolkit image render --all --check
    """
    from toolkit.images.recipe import library
    from toolkit.images.recipe.names import list_recipes

    if every == (name is not None):
        raise UsageError(
            "name one recipe, or use --all",
            place="NAME",
            choices=list_recipes(),
            next_step="toolkit image render --help",
        )
    if check and write:
        raise UsageError(
            "--check and --write do not go together",
            place="--check",
            next_step="toolkit image render --help",
        )
    if features and (check or write or every):
        raise UsageError(
            "--with shows a definition; it does not go with --check, --write, --all", place="--with"
        )
    named: Sequence[str] = list_recipes() if name is None else (name,)
    if check:
        _check_rendered(named, (form,) if form else FORMS)
        return
    for recipe in named:
        resolved = library.load(recipe, features)
        for output_form in (form,) if form else FORMS if write else FORMS[:1]:
            text = library.render(resolved, output_form)
            if write:
                _write(library.definition_path(recipe, output_form), text)
            else:
                console.document(text)


def _write(path: Path, text: str) -> None:
    from toolkit.files import write_atomically

    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    write_atomically(path, text)
    console.say("written", str(path))


def _check_rendered(recipes: Iterable[str], forms: Iterable[str]) -> None:
    from difflib import unified_diff

    from toolkit.images.recipe import library

    wrong: dict[str, None] = {}
    details: list[str] = []
    for recipe, form in ((recipe, form) for recipe in recipes for form in forms):
        path = library.definition_path(recipe, form)
        committed = path.read_text(encoding="utf-8") if path.is_file() else ""
        wanted = library.render(library.load(recipe), form)
        if committed != wanted:
            wrong[recipe] = None
            details += unified_diff(
                committed.splitlines(),
                wanted.splitlines(),
                str(path),
                "as rendered",
                lineterm="",
                n=1,
            )
    if wrong:
        again = next(iter(wrong)) if len(wrong) == 1 else "--all"
        cause = f"not what its recipe renders to: the definition of {', '.join(wrong)}"
        raise ConfigError(
            cause, details=details[:200], next_step=f"toolkit image render {again} --write"
        )
