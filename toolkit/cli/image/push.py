"""`toolkit image push`."""

from __future__ import annotations

import click


@click.command("push")
@click.argument("name")
@click.argument("target", metavar="oras://REGISTRY/PATH:TAG")
def command(name: str, target: str) -> None:
    """Put an image into a registry, with its manifest and its bill of materials.

    The login is that of Docker's or Apptainer's own configuration. Plain HTTP is spoken with a registry on this machine only.

    \b
    Example:
      toolkit image push pytorch_cpu oras://registry.site/images/pytorch_cpu:1
    """
    from toolkit.cli import console
    from toolkit.images.registry import transfer
    from toolkit.images.store import store

    with console.Steps() as progress:
        place = transfer.push(store.find(name), target, progress)
    console.note(console.subject("pushed", f"back: toolkit image pull oras://{place}"))
