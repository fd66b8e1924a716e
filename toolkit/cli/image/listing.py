"""`toolkit image list`."""

from __future__ import annotations

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(as_json: bool) -> None:
    """List recipes and images: what is built, how large, with what in it.

    Images of others are in the directories under `images` in /etc/toolkit/toolkit.toml, in your own
    or the project's toolkit.toml, and in those of the site that is chosen there.
    """
    from toolkit.cli import console
    from toolkit.images.store.listing import listing
    from toolkit.units import human_size

    listed = listing()
    if as_json:
        import msgspec

        console.out_json([msgspec.structs.asdict(image) for image in listed])
        return
    rows = [
        (
            image.name,
            image.state,
            human_size(image.size) if image.size else "-",
            f"{image.checks[0]} of {image.checks[1]}" if image.checks else "-",
            (
                ", ".join(f"{name} {version}" for name, version in image.frameworks.items())
                or image.summary
            )
            + (f" (in {image.directory})" if image.directory else ""),
        )
        for image in listed
    ]
    console.out(console.table(("NAME", "STATE", "SIZE", "CHECKS", "CONTAINS"), rows))
