"""`toolkit image pull`."""

from __future__ import annotations

import click


@click.command("pull")
@click.argument("origin", metavar="FROM")
@click.option("--name", help="What it is called here; default: as where it was built.")
@click.option("--force", is_flag=True, help="Replace an image of that name.")
def command(origin: str, name: str | None, force: bool) -> None:
    """Bring an image from a registry: oras://, as `push` put it there, or docker://, any image, converted once before jobs run it.

    It appears when it is whole, and is what its manifest describes.

    \b
    Examples:
      toolkit image pull oras://registry.site/images/pytorch_cpu:1
      toolkit image pull docker://nvcr.io/nvidia/pytorch:25.06-py3 --name pytorch
    """
    from toolkit.cli import console
    from toolkit.images.registry import transfer

    with console.Steps() as progress:
        path = transfer.pull(origin, name, progress, force=force)
    console.document(str(path))
