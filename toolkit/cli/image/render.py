"""`toolkit image render`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from toolkit.images.recipes import Resolved


@click.command("render")
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Every recipe that came with the tool.")
@click.option("--check", is_flag=True, help="Print nothing; exit code 78 and the differences where the committed definition is another.")
@click.option("--write", is_flag=True, help="Write the committed definition anew.")
def command(name: str | None, every: bool, check: bool, write: bool) -> None:
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
