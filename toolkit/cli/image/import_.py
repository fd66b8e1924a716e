"""`toolkit image import`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", help="Of the recipe; default: the file's.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where NAME.toml is written; default: here.",
)
def command(file: Path, name: str | None, directory: Path) -> None:
    """Make a recipe of a Dockerfile or a Singularity definition; what a recipe cannot carry is named, with what to do instead.

    \b
    Examples:
      toolkit image import Dockerfile --name mine
      toolkit image import horovod.def
    """
    import re

    from toolkit.cli import console
    from toolkit.errors import UsageError
    from toolkit.files import write_atomically
    from toolkit.images.recipe import library
    from toolkit.images.recipe.importing import import_file
    from toolkit.images.recipe.names import image_name

    chosen = name or re.sub(r"[^A-Za-z0-9._+-]", "-", file.stem).strip("-.") or "imported"
    path = directory / f"{image_name(chosen, '--name', error=UsageError)}.toml"
    if path.exists():
        raise UsageError(
            f"{path} is there already, and is not overwritten",
            place="--name",
            next_step="another --name, or remove the file",
        )
    draft = import_file(file, chosen)
    write_atomically(path, draft.recipe)
    try:
        library.load(str(path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    for unsupported in draft.unsupported:
        console.note(
            console.subject(
                "not taken",
                f"{file}:{unsupported.line}: {unsupported.text}"
                if unsupported.line
                else unsupported.text,
            )
        )
        console.note(console.subject("", f"instead: {unsupported.instead}"))
    console.note(console.subject("written", str(path)))
    console.note(console.subject("next", f"toolkit image build {path}"))
    console.document(str(path))
