"""`toolkit image prune`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("prune")
@click.option(
    "--older-than", metavar="AGE", help="Images that were built longer ago: 30d, 12h, 8w."
)
@click.option(
    "--unused-for",
    metavar="AGE",
    help="Images that no run used for so long. With --older-than, both must hold.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(older_than: str | None, unused_for: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove images that are old or unused, and logs of builds that failed more than a week ago.

    Without an age no image goes. An image that a run uses which has not ended stays. What builds keep for the next: toolkit image cache.

    \b
    Examples:
      toolkit image prune --unused-for 30d --dry-run
      toolkit image prune --older-than 90d --unused-for 30d
    """
    from toolkit.cli import console
    from toolkit.images.store import prune, store
    from toolkit.runs.removal import holds_image
    from toolkit.units import human_size

    ages = {
        "older_than": prune.seconds(older_than, "--older-than") if older_than else None,
        "unused_for": prune.seconds(unused_for, "--unused-for") if unused_for else None,
    }
    candidates = prune.candidates(store.images_directory(), holds=holds_image, **ages)
    freed = 0
    for candidate in candidates:
        if not candidate.reason_to_keep:
            freed += candidate.size
            if not dry_run and candidate.name.endswith(prune.FAILED_LOG):
                Path(candidate.paths[0]).unlink(missing_ok=True)
            elif not dry_run:
                prune.remove(Path(candidate.paths[0]), holds=holds_image)
    if as_json:
        import msgspec

        console.out_json(
            {"freed": freed, "dry_run": dry_run, "found": msgspec.to_builtins(candidates)}
        )
        return
    rows = [
        (
            candidate.name,
            human_size(candidate.size),
            f"stays: {candidate.reason_to_keep}"
            if candidate.reason_to_keep
            else "would go"
            if dry_run
            else "gone",
            candidate.why,
        )
        for candidate in candidates
    ]
    if rows:
        console.out(console.table(("NAME", "SIZE", "", "WHY"), rows))
    console.note(console.subject("would free" if dry_run else "freed", human_size(freed)))
