"""`toolkit image`: build images from recipes, show them, prove them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.errors import BuildError, ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from toolkit.images.builders.build import Built
    from toolkit.images.recipes import Resolved
    from toolkit.model.image import Check


@click.group("image")
def command() -> None:
    """Build, list and check images.

    \b
    Examples:
      toolkit image list
      toolkit image build pytorch_cpu
      toolkit image check pytorch_cpu
      toolkit image render pytorch_cpu        # the definition, for plain `apptainer build`
    """


@command.command("build")
@click.argument("name")
@click.option("--force", is_flag=True, help="Build also where nothing has changed.")
@click.option("--no-wait", is_flag=True, help="Give up where somebody else builds it now; exit code 75.")
@click.option("--json", "as_json", is_flag=True, help="For programs: the path and the manifest.")
def build(name: str, force: bool, no_wait: bool, as_json: bool) -> None:
    """Build the image of a recipe: NAME, or a path to a .toml file.

    \b
    What has not changed is kept. The image appears when it is whole and has passed its checks, not before.
    Images are in $TOOLKIT_IMAGES, or ~/.local/share/toolkit/images. A build unpacks beside them, or in $TOOLKIT_BUILD_TMP.
    """
    from toolkit.cli import console
    from toolkit.images.builders.build import build as build_image

    with console.Steps() as progress:
        built = build_image(name, progress, force=force, wait=not no_wait)
    _show_built(built, as_json)


def _show_built(built: Built, as_json: bool) -> None:
    from toolkit.cli import console
    from toolkit.units import human_size, human_time

    manifest = built.manifest
    if as_json:
        import msgspec

        console.out_json({"path": built.path, "kept": built.kept, "seconds": built.seconds, "manifest": msgspec.to_builtins(manifest)})
        return
    contents = ", ".join(f"{name} {version}" for name, version in manifest.frameworks.items())
    if built.kept:
        console.note(console.subject("kept", f"{manifest.name}: unchanged since it was built, {manifest.built}"))
    else:
        passed = sum(check.passed for check in manifest.checks)
        proven = f"; {passed} of {len(manifest.checks)} checks passed" if manifest.checks else ""
        console.note(console.subject("built", f"{human_size(manifest.size)} in {human_time(built.seconds)}{proven}"))
    if contents:
        console.note(console.subject("contains", contents))
    console.out(built.path)


@command.command("render")
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Every recipe that came with the tool.")
@click.option("--check", is_flag=True, help="Print nothing; exit code 78 and the differences where the committed definition is another.")
@click.option("--write", is_flag=True, help="Write the committed definition anew.")
def render(name: str | None, every: bool, check: bool, write: bool) -> None:
    """Show the definition that a recipe becomes: what `apptainer build` reads.

    For a recipe that came with the tool it is committed as containers/NAME.def; for one of your own it lies beside the .toml file.
    """
    from toolkit.images import library
    from toolkit.images.names import recipe_names

    if every == (name is not None):
        raise UsageError("name one recipe, or use --all", place="NAME", choices=recipe_names(), next_step="toolkit image render --help")
    if check and write:
        raise UsageError("--check and --write do not go together", place="--check", next_step="toolkit image render --help")
    named: Sequence[str] = recipe_names() if name is None else (name,)
    if check:
        _check_rendered(named)
        return
    for one in named:
        resolved = library.load(one)
        _write_rendered(resolved, library.definition_path(one)) if write else click.echo(library.rendered(resolved), nl=False)


def _write_rendered(resolved: Resolved, path: Path) -> None:
    from toolkit.cli import console
    from toolkit.files import write_atomically
    from toolkit.images import library

    write_atomically(path, library.rendered(resolved))
    console.note(console.subject("written", str(path)))


def _check_rendered(recipes: Iterable[str]) -> None:
    from difflib import unified_diff

    from toolkit.images import library

    wrong: list[str] = []
    details: list[str] = []
    for recipe in recipes:
        path = library.definition_path(recipe)
        committed = path.read_text(encoding="utf-8") if path.is_file() else ""
        wanted = library.rendered(library.load(recipe))
        if committed != wanted:
            wrong.append(recipe)
            details += unified_diff(committed.splitlines(), wanted.splitlines(), str(path), "as rendered", lineterm="", n=1)
    if wrong:
        again = wrong[0] if len(wrong) == 1 else "--all"
        cause = f"not what its recipe renders to: the definition of {', '.join(wrong)}"
        raise ConfigError(cause, details=details, next_step=f"toolkit image render {again} --write")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def list_images(as_json: bool) -> None:
    """List recipes and images: what is built, how large, with what in it."""
    from toolkit.cli import console
    from toolkit.images.listing import listing
    from toolkit.units import human_size

    listed = listing()
    if as_json:
        import msgspec

        console.out_json([msgspec.structs.asdict(one) for one in listed])
        return
    rows = [
        (
            one.name,
            one.state,
            human_size(one.size) if one.size else "-",
            f"{one.checks[0]} of {one.checks[1]}" if one.checks else "-",
            ", ".join(f"{name} {version}" for name, version in one.frameworks.items()) or one.summary,
        )
        for one in listed
    ]
    console.out(console.table(("NAME", "STATE", "SIZE", "CHECKS", "CONTAINS"), rows))


@command.command("path")
@click.argument("name")
def path_of(name: str) -> None:
    """Print where an image is: for `apptainer exec "$(toolkit image path NAME)" ...`."""
    from toolkit.cli import console
    from toolkit.images.store import find

    console.out(find(name).path)


@command.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check_image(name: str, as_json: bool) -> None:
    """Run the checks that an image carries again, and record how they came out; exit code 74 if one fails."""
    from toolkit.cli import console
    from toolkit.images.builders.check import check
    from toolkit.images.store import find

    image = find(name)
    if not as_json:
        console.note(console.subject("checking", image.path))
    checks = check(image)
    if as_json:
        import msgspec

        console.out_json([msgspec.to_builtins(one) for one in checks])
    else:
        console.out(console.table(("CHECK", "RESULT", "DETAIL"), [(one.name, _outcome(one), one.detail) for one in checks]))
    failed = [one.name for one in checks if not one.passed]
    if failed:
        raise BuildError(f"{image.name} did not pass {len(failed)} of {len(checks)} checks", place=", ".join(failed))


def _outcome(check: Check) -> str:
    return "passed" if check.passed else "failed"
