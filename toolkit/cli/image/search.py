"""`toolkit image search`."""

from __future__ import annotations

import click


@click.command("search")
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Find recipes, images and NVIDIA's NGC releases.

    A word is looked for in names and summaries. A filter is a fact and a value: framework, version, python, cuda, nccl, openmpi, driver,
    release, ubuntu, horovod, kind; with : = < > <= >=. What is not known of something does not fit.

    \b
    Examples:
      toolkit image search pytorch
      toolkit image search framework:pytorch 'cuda>=12' python:3.10
      toolkit image search 'driver<=470'
    """
    from toolkit.cli import console
    from toolkit.images.store.entries import catalogue_entries
    from toolkit.images.store.search import matching

    matches = matching(catalogue_entries(), words)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(matches))
        return
    if matches:
        console.out(
            console.table(
                ("NAME", "KIND", "WHAT"),
                [(entry.name, entry.kind, entry.summary) for entry in matches],
            )
        )
    else:
        console.note("nothing fits; toolkit image search without words shows everything")
