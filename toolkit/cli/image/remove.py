"""`toolkit image remove`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("remove")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also where a run uses it that has not ended.")
def command(name: str, force: bool) -> None:
    """Remove an image of yours, with its manifest, bill of materials and logs.

    \b
    Example:
      toolkit image remove pytorch_cpu
    """
    from toolkit.cli import console
    from toolkit.errors import ForbiddenError, ImageMissingError
    from toolkit.images.store import prune, store
    from toolkit.runs.removal import holds_image
    from toolkit.units import human_size

    path = store.images_directory() / f"{name.removesuffix('.sif')}.sif"
    if not path.exists():
        path = Path(store.find(name).path)
    if path.parent != store.images_directory():
        raise ForbiddenError(
            f"{path} is not among your own images",
            place=str(path),
            next_step=f"rm {path}, if it is yours",
        )
    if not path.exists():
        raise ImageMissingError(f"the image {name} is not there", next_step="toolkit image list")
    console.note(
        console.subject(
            "removed",
            f"{path.name}: {human_size(prune.remove(path, force=force, holds=holds_image))}",
        )
    )
