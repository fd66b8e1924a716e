"""`toolkit image path`."""

from __future__ import annotations

import click


@click.command("path")
@click.argument("name")
def command(name: str) -> None:
    """Print where an image is: for `apptainer exec "$(toolkit image path NAME)" ...`."""
    from toolkit.cli import console
    from toolkit.images.store.store import find

    console.document(find(name).path)
