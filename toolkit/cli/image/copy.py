"""`toolkit image copy`."""

from __future__ import annotations

import click


@click.command("copy")
@click.argument("name")
@click.argument("target", metavar="[HOST:]DIRECTORY")
@click.option(
    "--mode",
    default="644",
    show_default=True,
    help="Permissions there, octal: 640 for the group, 644 for all.",
)
def command(name: str, target: str, mode: str) -> None:
    """Copy an image and its manifest to a directory, also of another machine (by rsync and ssh).

    \b
    Examples:
      toolkit image copy pytorch_cpu /apps/images
      toolkit image copy pytorch_cpu login.site:/scratch/me/images --mode 640
    """
    from toolkit.cli import console
    from toolkit.errors import UsageError
    from toolkit.images.registry import transfer
    from toolkit.images.store import store

    if not mode.isdigit() or len(mode) > 4 or any(digit in "89" for digit in mode):
        raise UsageError(f"{mode!r} are no permissions", place="--mode", next_step="--mode 644")
    with console.Steps() as progress:
        console_path = transfer.copy(store.find(name), target, progress, mode=int(mode, 8))
    console.document(console_path)
