"""`toolkit image cache`."""

from __future__ import annotations

import click


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove all of it; the images stay.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(clear: bool, as_json: bool) -> None:
    """Show what builds keep for the next: bases, what steps changed, compiled wheels.

    It lies beside the images, in .cache. Without it the next build of an image takes as long as the
    first.
    """
    from toolkit.cli import console
    from toolkit.images.build.apptainer.cache import Cache
    from toolkit.images.store import store
    from toolkit.units import human_size

    cache = Cache(store.images_directory())
    entries = cache.entries()
    if clear:
        with cache.alone():
            for entry in entries:
                cache.drop(entry)
            cache.sweep()
        console.note(
            console.subject(
                "removed",
                f"{len(entries)} entries, {human_size(sum(entry.note.size for entry in entries))}",
            )
        )
        return
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(entries))
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
    console.note(
        console.subject(
            "total", f"{human_size(sum(entry.note.size for entry in entries))} in {cache.directory}"
        )
    )


def _age(used: float) -> str:
    import time

    hours = (time.time() - used) / 3600
    return (
        f"{hours / 24:.0f} days ago"
        if hours >= 48
        else f"{hours:.0f} h ago"
        if hours >= 1
        else "within the hour"
    )
