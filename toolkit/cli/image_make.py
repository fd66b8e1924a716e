"""The commands that make recipes and images: `toolkit image build`, `lock`, `new`, `import`, ..."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.errors import EXHAUSTED, ForbiddenError, UsageError
from toolkit.files import write_atomically
from toolkit.images.recipe import library
from toolkit.images.recipe.names import list_recipes, require_image_name
from toolkit.quoting import shell as quoted
from toolkit.units import human_size, human_time

if TYPE_CHECKING:
    from toolkit.images.builder.build import BuildResult, Engine

directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Directory for NAME.toml (default: the current directory).",
)


@click.command("build")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Run every step again. What was compiled is used again if all below it is the same.",
)
@click.option(
    "--engine",
    type=click.Choice(("apptainer", "docker")),
    default="apptainer",
    help="Program that builds. docker: Docker, whose image becomes a SIF.",
)
@click.option(
    "--flat",
    is_flag=True,
    help="Pack the whole image, by Apptainer alone, which does not confine the steps; without this "
    "option, only what changed is packed.",
)
@click.option(
    "--locked",
    is_flag=True,
    help="Build exactly what the recipe's lock says (toolkit image lock), the same file "
    "everywhere.",
)
@click.option("--lock-file", metavar="FILE", help="The same, with the lock in this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the path and the manifest as JSON.")
def build(
    name: str,
    force: bool,
    engine: Engine,
    flat: bool,
    locked: bool,
    lock_file: str | None,
    as_json: bool,
) -> None:
    """Build the image of a recipe.

    NAME is a recipe, or a path to a .toml file. Unchanged parts are reused: the image, or its steps
    before the first changed one (toolkit image cache). The image gets its name only when it is
    complete and has passed its checks. Then it is verified externally, as by `image verify`.

    The tag of a base is looked up when an image is built, not to see whether one is unchanged:
    --force builds on what the tag names now, and `digest` in the recipe's [base] pins it.

    Images are in $TOOLKIT_IMAGES, or ~/.local/share/toolkit/images. A build unpacks beside them, or
    in $TOOLKIT_BUILD_TMP.

    \b
    Examples:
      toolkit image build pytorch_cpu
      toolkit image build ./mine.toml --engine docker
      toolkit image build pytorch_cpu --locked
    """
    # `image render` must not wait for these.
    from toolkit.images.builder.build import BuildOptions
    from toolkit.images.builder.build import build as build_image
    from toolkit.images.lockfile.files import lock_path
    from toolkit.planning.settings import find_site

    options = BuildOptions(
        force=force,
        engine=engine,
        flat=flat,
        lock=lock_file or (str(lock_path(name)) if locked else None),
        find_site=find_site,
    )
    with console.Steps() as progress:
        built = build_image(name, progress, options)
    if not as_json:
        _show_built(built)
        return
    data = {"path": built.path, "kept": built.is_current, "seconds": built.seconds}
    console.out_json({**data, "manifest": built.manifest})


def _show_built(built: BuildResult) -> None:
    from toolkit.images.store.listing import count_passed

    manifest = built.manifest
    contents = ", ".join(f"{name} {version}" for name, version in manifest.frameworks.items())
    if built.is_current:
        console.say("kept", f"{manifest.name}: unchanged since it was built, {manifest.built}")
    else:
        passed, made = count_passed(built.verdicts)
        proven = f"; {passed} of {made} checks passed" if made else ""
        console.say("built", f"{human_size(manifest.size)} in {human_time(built.seconds)}{proven}")
    if contents:
        console.say("contains", contents)
    console.document(built.path)


@click.command("lock")
@click.argument("name")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write (default: beside the recipe).",
)
def lock(name: str, output: Path | None) -> None:
    """Record exactly what the image of a recipe was built from.

    NAME is a recipe, or a path to a .toml file. The lock names the base by its digest, every
    package of Debian by its version, and every package of Python by the hash of its file, also
    those that only the build needs. Commit the lock: from then on `image build --locked` builds the
    same image, to the last byte of its file system, or says what is not available.

    \b
    Examples:
      toolkit image lock pytorch_cpu
      toolkit image build pytorch_cpu --locked
    """
    from toolkit.images.lockfile.files import lock_path
    from toolkit.images.lockfile.make import make
    from toolkit.images.recipe.lock import format_lock

    path = output or lock_path(name)
    console.say("locking", name)
    lock = make(name, int(time.time()))
    try:
        write_atomically(path, format_lock(lock))
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        raise ForbiddenError(
            f"the lock cannot be written: {error.strerror}",
            place=str(path),
            next_step=f"toolkit image lock {quoted(name)} --output FILE",
        ) from None
    debian = f"{len(lock.apt)} + {len(lock.apt_build)} packages of Debian"
    console.say("locked", f"{debian}, {len(lock.pip) + len(lock.pip_build)} of Python")
    console.document(str(path))


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
@directory_option
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
    from toolkit.images.recipe import drafts

    path = _new_file(directory, name, place="NAME")
    text = drafts.draft(name, _file_of(origin, directory), features, packages, cwd=str(Path.cwd()))
    _write_recipe(path, text)
    _show_written(path)


def _file_of(origin: str, directory: Path) -> str:
    """Return the file of a built image, or of a recipe as seen from a directory; else the name."""
    from toolkit.images.recipe import catalogue
    from toolkit.images.store import store

    if origin.endswith(".toml"):
        return os.path.relpath(Path(origin).expanduser(), directory)
    is_known = origin in list_recipes() or catalogue.find_by_name(origin) is not None
    if is_known or origin.endswith(".sif") or set(origin) & set("/:"):
        return origin
    return store.find(origin).path


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", help="Name of the recipe (default: from the name of the file).")
@directory_option
def import_recipe(file: Path, name: str | None, directory: Path) -> None:
    """Convert a Dockerfile or a Singularity definition to a recipe.

    What a recipe cannot hold is listed, with what to do instead.

    \b
    Examples:
      toolkit image import Dockerfile --name mine
      toolkit image import horovod.def
    """
    import shutil

    from toolkit.images.recipe.importers import import_file

    chosen = name or re.sub(r"[^A-Za-z0-9._+-]", "-", file.stem).strip("-.") or "imported"
    path = _new_file(directory, chosen, place="--name")
    files = path.with_name(f"{chosen}.files")
    _require_new(files, "--name")
    try:
        text, left_out = import_file(file, files)
        _write_recipe(path, text)
    except BaseException:
        shutil.rmtree(files, ignore_errors=True)
        raise
    for unsupported in left_out:
        console.say("left out", f"{file}:{unsupported.line}: {unsupported.text}")
        console.say("", f"instead: {unsupported.instead}")
    _show_written(path)


def _show_written(path: Path) -> None:
    console.say("written", str(path))
    console.say("next", f"toolkit image build {path}")
    console.document(str(path))


def _new_file(directory: Path, name: str, *, place: str) -> Path:
    """Return the path of a new recipe.

    Raises:
        UsageError: the name is not allowed, or there is such a file already.
    """
    path = directory / f"{require_image_name(name, place, error=UsageError)}.toml"
    _require_new(path, place)
    return path


def _require_new(path: Path, place: str) -> None:
    if path.exists():
        raise UsageError(
            f"{path} exists already, and is not overwritten",
            place=place,
            next_step=f"another {'name' if place == 'NAME' else place}, or remove the file",
        )


def _write_recipe(path: Path, text: str) -> None:
    """Write a recipe; if it is invalid, remove the file again."""
    write_atomically(path, text)
    try:
        library.load(str(path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@click.command("render")
@click.argument("name", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(tuple(library.FORMATS)),
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
        for each in (form,) if form else library.FORMATS:
            path, text = library.definition_path(recipe, each), library.render(resolved, each)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_atomically(path, text)
                console.say("written", str(path))
