"""The commands that free disk space: `toolkit image remove`, `prune` and `cache`."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.errors import ForbiddenError
from toolkit.units import counted, human_age, human_size


@click.command("remove")
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it also if a run that has not ended uses it.")
def remove(name: str, force: bool) -> None:
    """Remove an image of yours.

    Its manifest, bill of materials and logs go with it.

    \b
    Example:
      toolkit image remove pytorch_cpu
    """
    from toolkit.images.store import prune, store
    from toolkit.runs.removal import holds_image

    path = store.images_directory() / f"{name.removesuffix('.sif')}.sif"
    if not path.exists():
        path = Path(store.find(name).path)
    if path.parent != store.images_directory():
        raise ForbiddenError(
            f"{path} is not among your own images",
            place=str(path),
            next_step=f"rm {path}, if it is yours",
        )
    console.say(
        "removed", f"{path.name}: {human_size(prune.remove(path, force=force, holds=holds_image))}"
    )


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
    from toolkit.images.store import prune, store
    from toolkit.runs.removal import holds_image

    ages = {
        "older_than": prune.seconds(older_than, "--older-than") if older_than else None,
        "unused_for": prune.seconds(unused_for, "--unused-for") if unused_for else None,
    }
    candidates = prune.prune(store.images_directory(), holds=holds_image, dry_run=dry_run, **ages)
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
    from toolkit.images.store import store
    from toolkit.images.store.cache import Cache

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
    if as_json:
        console.out_json(entries)
        return
    rows = [
        (
            entry.kind,
            entry.note.about or "-",
            human_size(entry.note.size),
            _age(entry.used),
            entry.key[:12],
        )
        for entry in entries
    ]
    console.out(console.table(("KIND", "OF", "SIZE", "LAST USED", "KEY"), rows))
    console.say("total", f"{size} in {cache.directory}")


def _age(used: float) -> str:
    import time

    seconds = time.time() - used
    return f"{human_age(seconds)} ago" if seconds >= 3600 else "within the hour"
