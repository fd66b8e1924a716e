"""`toolkit image new`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("new")
@click.argument("name")
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="IMAGE",
    help="A reference (nvcr.io/nvidia/pytorch:25.06-py3), a recipe, or a .sif file.",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    metavar="THING",
    help="horovod, or a feature such as jupyter; may be given again.",
)
@click.option(
    "--pip",
    "packages",
    multiple=True,
    metavar="REQUIREMENT",
    help="A package for pip; may be given again.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where NAME.toml is written; default: here.",
)
def command(
    name: str, origin: str, features: tuple[str, ...], packages: tuple[str, ...], directory: Path
) -> None:
    """Write a recipe, NAME.toml, that builds: `toolkit image build NAME.toml`.

    \b
    Examples:
      toolkit image new mine --from nvcr.io/nvidia/pytorch:25.06-py3 --with horovod --with jupyter
      toolkit image new mine --from pytorch_cpu --pip einops==0.8.1
    """
    from toolkit.cli import console
    from toolkit.errors import UsageError
    from toolkit.files import write_atomically
    from toolkit.images.recipe import library
    from toolkit.images.recipe.drafts import draft
    from toolkit.images.recipe.names import image_name

    image_name(name, "NAME", error=UsageError)
    path = directory / f"{name}.toml"
    if path.exists():
        raise UsageError(
            f"{path} is there already, and is not overwritten",
            place="NAME",
            next_step="another name, or remove the file",
        )
    text = draft(name, origin, features, packages, here=str(Path.cwd()))
    write_atomically(path, text)
    try:
        resolved = library.load(str(path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    console.note(console.subject("written", str(path)))
    if resolved.dropped:
        console.note(console.subject("", f"the base has already: {', '.join(resolved.dropped)}"))
    console.note(console.subject("next", f"toolkit image build {path}"))
    console.document(str(path))
