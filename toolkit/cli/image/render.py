"""`toolkit image render`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FORMS = ("apptainer", "docker")  # definitions.FORMATS, which a help text need not import


@click.command("render")
@click.argument("name", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="Which definition; printed is Apptainer's, checked and written are all.",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    metavar="FEATURE",
    help="Add a feature; may be given again.",
)
@click.option("--all", "every", is_flag=True, help="Every recipe that came with the tool.")
@click.option(
    "--check",
    is_flag=True,
    help="Print nothing; exit code 78 and the differences where a committed definition is another.",
)
@click.option("--write", is_flag=True, help="Write the committed definitions again.")
def command(
    name: str | None,
    form: str | None,
    features: tuple[str, ...],
    every: bool,
    check: bool,
    write: bool,
) -> None:
    """Show the definition that a recipe becomes: what `apptainer build` or `docker build` reads.

    For a recipe that came with the tool they are committed as containers/NAME.def and containers/NAME.Dockerfile; for one of your own they
    lie beside the .toml file.

    \b
    Examples:
      toolkit image render pytorch_cpu
      toolkit image render pytorch_cpu --format docker --with jupyter
      toolkit image render --all --check
    """
    from toolkit.cli import console
    from toolkit.images.recipe import library
    from toolkit.images.recipe.names import recipe_names

    if every == (name is not None):
        raise UsageError(
            "name one recipe, or use --all",
            place="NAME",
            choices=recipe_names(),
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
    named: Sequence[str] = recipe_names() if name is None else (name,)
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
    from toolkit.cli import console
    from toolkit.files import write_atomically

    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    write_atomically(path, text)
    console.note(console.subject("written", str(path)))


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
