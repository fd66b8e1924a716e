"""The commands that move images: `toolkit image push`, `pull` and `copy`."""

from __future__ import annotations

import click

from toolkit.cli import console
from toolkit.errors import UsageError


@click.command("push")
@click.argument("name")
@click.argument("target", metavar="oras://REGISTRY/PATH:TAG")
def push(name: str, target: str) -> None:
    """Push an image to a registry.

    Its manifest and its bill of materials go with it. The login is that of Docker's or Apptainer's
    own configuration. Plain HTTP is used only for a registry on this machine.

    \b
    Example:
      toolkit image push pytorch_cpu oras://registry.site/images/pytorch_cpu:1
    """
    from toolkit.images.registry import transfer
    from toolkit.images.store import store

    with console.Steps() as progress:
        place = transfer.push(store.find(name), target, progress)
    console.say("pushed", f"get it: toolkit image pull oras://{place}")


@click.command("pull")
@click.argument("origin", metavar="FROM")
@click.option("--name", help="Name of the image here (default: its name where it was built).")
@click.option("--force", is_flag=True, help="Replace an image of that name.")
def pull(origin: str, name: str | None, force: bool) -> None:
    """Pull an image from a registry.

    From oras:// comes an image that `push` put there; from docker://, any image, which is converted
    once before jobs run it. The image appears when it is complete and matches its manifest.

    \b
    Examples:
      toolkit image pull oras://registry.site/images/pytorch_cpu:1
      toolkit image pull docker://nvcr.io/nvidia/pytorch:25.06-py3 --name pytorch
    """
    from toolkit.images.registry import transfer

    with console.Steps() as progress:
        path = transfer.pull(origin, name, progress, force=force)
    console.document(str(path))


@click.command("copy")
@click.argument("name")
@click.argument("target", metavar="[HOST:]DIRECTORY")
@click.option(
    "--mode",
    default="644",
    show_default=True,
    help="Permissions of the copy, octal: 640 for the group, 644 for all.",
)
def copy(name: str, target: str, mode: str) -> None:
    """Copy an image to a directory, here or on another machine.

    Its manifest goes with it. Another machine is reached by rsync and ssh.

    \b
    Examples:
      toolkit image copy pytorch_cpu /apps/images
      toolkit image copy pytorch_cpu login.site:/scratch/me/images --mode 640
    """
    from toolkit.images.registry import copies
    from toolkit.images.store import store

    if not mode.isdigit() or len(mode) > 4 or any(digit in "89" for digit in mode):
        step = "--mode 644, or --mode 640 for the group only"
        raise UsageError(f"{mode!r} is not an octal mode", place="--mode", next_step=step)
    with console.Steps() as progress:
        console_path = copies.copy(store.find(name), target, progress, mode=int(mode, 8))
    console.document(console_path)
