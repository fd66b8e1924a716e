"""The commands that list contents: `toolkit image diff` and `sbom`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.terminal_text import json_safe

if TYPE_CHECKING:
    from toolkit.images.store.diff import Difference

SECTION = "Find"
_MOST = 40  # rows of each kind that a person is shown


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--quick", is_flag=True, help="Do not unpack: files of the same size count as the same."
)
@click.option("--all", "every", is_flag=True, help=f"Show all; without it, {_MOST} of each kind.")
@click.option("--json", "as_json", is_flag=True, help="For programs; shows all.")
def diff(before: str, after: str, quick: bool, every: bool, as_json: bool) -> None:
    """Compare two images: packages, labels, environment, files.

    The exit code is 1 if they differ.

    \b
    Examples:
      toolkit image diff pytorch_cpu /shared/images/pytorch_cpu.sif
      toolkit image diff old.sif new.sif --quick
    """
    from toolkit.images.store.compare import compare
    from toolkit.images.store.store import find

    difference = compare(find(before), find(after), read=not quick)
    if as_json:
        console.out_json(difference)
    else:
        _show(difference, every)
    if not difference.identical:
        raise SystemExit(1)


def _show(difference: Difference, every: bool) -> None:
    if difference.identical:
        console.out("identical contents: the file systems are the same in every byte")
        return
    counts = Counter(change.kind for change in difference.changes)
    for kind in ("packages", "labels", "environment", "files"):
        rows = [
            (change.name, change.before or "-", change.after or "-")
            for change in difference.changes
            if change.kind == kind
        ]
        if rows:
            console.out(console.table((kind.upper(), "A", "B"), rows if every else rows[:_MOST]))
            if not every and len(rows) > _MOST:
                console.out(f"and {len(rows) - _MOST} more: --all")
            console.out("")
    if difference.contents:
        console.out(f"the same files with the same contents; {difference.times} have another time")
        return
    console.out(
        ", ".join(f"{counts[kind]} {kind}" for kind in counts)
        or "no file differs by its name, kind, size or owner"
    )
    if difference.times:
        console.out(f"{difference.times} files differ in their time only")
    if difference.uncompared:
        console.out(
            f"the contents of {difference.uncompared} files of the same size were not compared"
        )


@click.command("sbom")
@click.argument("name")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it there instead of printing it.",
)
def sbom(name: str, output: Path | None) -> None:
    """Print the contents of an image as a bill of materials.

    The format is CycloneDX 1.6, in JSON. A build writes the same beside the image, as
    NAME.cdx.json; of an image that was built elsewhere it is made now.

    \b
    Example:
      toolkit image sbom pytorch_cpu -o pytorch_cpu.cdx.json
    """
    from toolkit.files import write_atomically
    from toolkit.images.store.materials import materials
    from toolkit.images.store.store import find

    text = materials(find(name))
    if output is None:
        console.document(json_safe(text))
    else:
        write_atomically(output, text)
