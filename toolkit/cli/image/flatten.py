"""`toolkit image flatten`."""

from __future__ import annotations

import click


@click.command("flatten")
@click.argument("name")
def command(name: str) -> None:
    """Pack the image NAME again as one, without what its later steps deleted or replaced.

    An image that was built in layers starts as fast as a flat one, but its file still holds what is
    seen no more.
    """
    from toolkit.cli import console
    from toolkit.images.build.apptainer.flatten import flatten
    from toolkit.units import human_size

    with console.Steps() as progress:
        flat = flatten(name, progress)
    console.note(
        console.subject("packed", f"{human_size(flat.before)} became {human_size(flat.after)}")
    )
    console.document(flat.path)
