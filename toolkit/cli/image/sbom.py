"""`toolkit image sbom`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("sbom")
@click.argument("name")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it there instead of printing it.",
)
def command(name: str, output: Path | None) -> None:
    """Print what is in an image as a bill of materials: CycloneDX 1.6, in JSON.

    A build writes the same beside the image, as NAME.cdx.json; of an image that was built elsewhere
    it is made now.
    """
    from toolkit.cli import console
    from toolkit.files import write_atomically
    from toolkit.images.store.materials import materials
    from toolkit.images.store.store import find
    from toolkit.terminal_text import json_safe

    text = materials(find(name))
    if output is None:
        console.document(json_safe(text))
    else:
        write_atomically(output, text)
