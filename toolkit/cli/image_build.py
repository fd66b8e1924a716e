"""The commands that make images: `toolkit image build` and `lock`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.doctor.node_jobs import find_site
from toolkit.errors import EXHAUSTED, ForbiddenError, UnknownImageError, UsageError
from toolkit.files import write_atomically
from toolkit.images.builder.build import BuildResult
from toolkit.images.builder.build import build as build_image
from toolkit.images.builder.methods import BuildOptions, Engine
from toolkit.images.lockfile.files import lock_path
from toolkit.images.lockfile.make import make
from toolkit.images.recipe.lock import to_toml
from toolkit.images.store.listing import count_passed
from toolkit.images.store.provenance import find_manifest
from toolkit.images.store.store import images_directory
from toolkit.units import human_size, human_time


@click.command("build")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Run every step again. What was compiled is used again if all below it is the same.",
)
@click.option(
    "--engine",
    type=click.Choice(("auto", "apptainer", "docker")),
    default="auto",
    help="Program that builds. docker: Docker or podman, whose image becomes a SIF. "
    "auto: Apptainer; where it may not build, docker.",
)
@click.option(
    "--flat",
    is_flag=True,
    help="Pack the whole image, by Apptainer alone; without this option, only what "
    "changed is packed.",
)
@click.option(
    "--locked",
    is_flag=True,
    help="Build exactly what the recipe's lock says (toolkit image lock), the same file "
    "everywhere.",
)
@click.option("--lock-file", metavar="FILE", help="The same, with the lock in this file.")
@click.option(
    "--no-wait", is_flag=True, help="Exit with code 75 if another process builds the image now."
)
@click.option("--json", "as_json", is_flag=True, help="Print the path and the manifest as JSON.")
def build(
    name: str,
    force: bool,
    engine: Engine,
    flat: bool,
    locked: bool,
    lock_file: str | None,
    no_wait: bool,
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
    if engine == "docker" and (locked or lock_file):
        cause = "a lock is built by Apptainer: what Docker packs is not the same to the last byte"
        step = "leave --engine out, or the lock"
        raise UsageError(cause, place="--engine docker", next_step=step)
    options = BuildOptions(
        force=force,
        engine=engine,
        flat=flat,
        wait=not no_wait,
        lock=lock_file or (str(lock_path(name)) if locked else None),
        find_site=find_site,
    )
    with console.Steps() as progress:
        built = build_image(name, progress, options)
        if not built.is_current:
            progress.say("verified", _verdicts(built))
    if as_json:
        console.out_json(
            {
                "path": built.path,
                "kept": built.is_current,
                "seconds": built.seconds,
                "manifest": built.manifest,
            }
        )
    else:
        show_built(built)


def _verdicts(built: BuildResult) -> str:
    """Return the external verification in one line: the image's own checks were printed before."""
    own = {check.name for check in built.manifest.checks}
    groups: dict[str, list[str]] = {"passed": [], "failed": [], "unchecked": []}
    for verdict in built.verdicts:
        if verdict.name not in own:
            groups[verdict.outcome].append(verdict.name)
    words = [f"{', '.join(names)} {outcome}" for outcome, names in groups.items() if names]
    return f"{'; '.join(words)} (toolkit image show {built.manifest.name})"


def show_built(built: BuildResult) -> None:
    """Print what a build has made, and the path of the image as the result."""
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
    type=click.Path(path_type=Path),
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
    try:
        path = output or lock_path(name)
    except UnknownImageError as error:
        raise _without_recipe(name, error) from None
    console.say("locking", name)
    lock = make(name, int(time.time()))
    try:
        write_atomically(path, to_toml(lock))
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        raise ForbiddenError(
            f"the lock cannot be written: {error.strerror}",
            place=str(path),
            next_step="toolkit image lock ... --output FILE",
        ) from None
    debian = f"{len(lock.apt)} + {len(lock.apt_build)} packages of Debian"
    console.say("locked", f"{debian}, {len(lock.files)} files of Python")
    console.document(str(path))


def _without_recipe(name: str, error: UnknownImageError) -> UnknownImageError:
    """Return the error about a name of no recipe; if an image has it, name the image's recipe."""
    manifest = find_manifest(images_directory() / f"{name}.sif")
    if manifest is None or not manifest.command:
        return error
    return UnknownImageError(
        f"{name} is an image, and a lock is made of the recipe that it was built from",
        next_step=f"toolkit image lock RECIPE; {name} was built by: {manifest.command}",
    )
