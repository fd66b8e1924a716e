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

        console.out_json([msgspec.structs.asdict(one) for one in listed])
        return
    rows = [
        (
            one.name,
            one.state,
            human_size(one.size) if one.size else "-",
            f"{one.checks[0]} of {one.checks[1]}" if one.checks else "-",
            (
                ", ".join(f"{name} {version}" for name, version in one.frameworks.items())
                or one.summary
            )
            + (f" (in {one.directory})" if one.directory else ""),
        )
        for one in listed
    ]
    console.out(console.table(("NAME", "STATE", "SIZE", "CHECKS", "CONTAINS"), rows))
