"""The commands that move and remove images: `toolkit image push`, `pull`, `copy`, `remove`, ..."""

from __future__ import annotations

import time
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.errors import ForbiddenError, UsageError
from toolkit.images.registry import copies, transfer
from toolkit.images.store import prune as pruning
from toolkit.images.store import store
from toolkit.images.store.cache import Cache
from toolkit.runs.removal import holds_image
from toolkit.units import counted, human_age, human_size


@click.command("remove")
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it also if a run that has not ended uses it.")
def remove(name: str, force: bool) -> None:
    """Remove an image of yours.

    The logs of its builds go with it.

    \b
    Example:
      toolkit image remove pytorch_cpu
    """
    path = store.images_directory() / f"{name.removesuffix('.sif')}.sif"
    if not path.exists():
        path = Path(store.find(name).path)
    if path.parent != store.images_directory():
        raise ForbiddenError(
            f"{path} is not among your own images",
            place=str(path),
            next_step=f"rm {path}, if it is yours",
        )
    freed = pruning.remove(path, force=force, holds=holds_image)
    console.say("removed", f"{path.name}: {human_size(freed)}")


@click.command("prune")
@click.option(
    "--older-than", metavar="AGE", help="Images that were built longer ago: 30d, 12h, 8w."
)
@click.option(
    "--unused-for",
    metavar="AGE",
    help="Images that no run used for so long. With --older-than, both must hold.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def prune(older_than: str | None, unused_for: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove old or unused images, and old logs of failed builds.

    Logs of builds go a week after the failure. Without an age no image is removed, and an image of
    a run that has not ended, or that another process works on, is never removed. What killed builds
    and transfers have left goes, too. For the cache of builds, see toolkit image cache.

    \b
    Examples:
      toolkit image prune --unused-for 30d --dry-run
      toolkit image prune --older-than 90d --unused-for 30d
    """
    ages = {
        "older_than": pruning.seconds(older_than, "--older-than") if older_than else None,
        "unused_for": pruning.seconds(unused_for, "--unused-for") if unused_for else None,
    }
    candidates = pruning.prune(store.images_directory(), holds=holds_image, dry_run=dry_run, **ages)
    freed = sum(candidate.size for candidate in candidates if not candidate.reason_to_keep)
    if as_json:
        console.out_json({"freed": freed, "dry_run": dry_run, "found": candidates})
        return
    done = "would be removed" if dry_run else "removed"
    rows = [
        (
            candidate.name,
            human_size(candidate.size),
            f"kept: {candidate.reason_to_keep}" if candidate.reason_to_keep else done,
            candidate.why,
        )
        for candidate in candidates
    ]
    if rows:
        console.out(console.table(("NAME", "SIZE", "", "WHY"), rows))
    console.say("would free" if dry_run else "freed", human_size(freed))


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove all of it; the images are kept.")
@json_option
def cache(clear: bool, as_json: bool) -> None:
    """Show or clear what builds reuse.

    These are bases, what steps changed, and compiled wheels. It is beside the images, in .cache.
    Without it the next build of an image takes as long as the first.

    \b
    Examples:
      toolkit image cache
      toolkit image cache --clear
    """
    cache = Cache(store.images_directory())
    entries = cache.entries()
    size = human_size(sum(entry.note.size for entry in entries))
    if clear:
        with cache.alone():
            for entry in entries:
                cache.drop(entry)
            cache.sweep()
        console.say("removed", f"{counted(len(entries), 'entry')}, {size}")
        return
    now = time.time()
    rows = [
        (
            entry.kind,
            entry.note.about or "-",
            human_size(entry.note.size),
            f"{human_age(now - entry.used)} ago" if now - entry.used >= 3600 else "within the hour",
            entry.key[:12],
        )
        for entry in entries
    ]
    table = console.table(("KIND", "OF", "SIZE", "LAST USED", "KEY"), rows)
    console.result(entries, table, as_json=as_json)
    if not as_json:
        console.say("total", f"{size} in {cache.directory}")


@click.command("push")
@click.argument("name")
@click.argument("target", metavar="oras://REGISTRY/PATH:TAG")
def push(name: str, target: str) -> None:
    """Push an image to a registry.

    The manifest and the bill of materials are in it. The login is that of Docker's or Apptainer's
    own configuration. Plain HTTP is used only for a registry on this machine.

    \b
    Example:
      toolkit image push pytorch_cpu oras://registry.site/images/pytorch_cpu:1
    """
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
    once before jobs run it. The image appears when it is complete.

    \b
    Examples:
      toolkit image pull oras://registry.site/images/pytorch_cpu:1
      toolkit image pull docker://nvcr.io/nvidia/pytorch:25.06-py3 --name pytorch
    """
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

    The manifest is in it. Another machine is reached by rsync and ssh.

    \b
    Examples:
      toolkit image copy pytorch_cpu /apps/images
      toolkit image copy pytorch_cpu login.site:/scratch/me/images --mode 640
    """
    if not mode.isdigit() or len(mode) > 4 or any(digit in "89" for digit in mode):
        step = "--mode 644, or --mode 640 for the group only"
        raise UsageError(f"{mode!r} is not an octal mode", place="--mode", next_step=step)
    with console.Steps() as progress:
        path = copies.copy(store.find(name), target, progress, mode=int(mode, 8))
    console.document(path)
