"""`toolkit bench history`: many scaling studies over time."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import json_option


@click.command("history")
@json_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write (default: history.html in DIR).",
)
@click.argument(
    "directory",
    metavar="[DIR]",
    default=Path("scale"),
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
def history(directory: Path, output: Path | None, as_json: bool) -> int:
    """Show scaling studies over time.

    It reads each report.json below DIR (default: scale), compares each point with the study before
    it, and writes a page with a chart for each training.

    \b
    Examples:
      toolkit bench history
      toolkit bench history /scratch/team/studies --output history.html
    """
    from toolkit.bench.scale import history as studies
    from toolkit.files import write_atomically

    entries, unreadable = studies.read_all(directory)
    rows = studies.rows(entries, directory)
    page = output or directory / "history.html"
    write_atomically(page, studies.page(entries, directory))
    named = [dict(zip(studies.HEADER, row, strict=True)) for row in rows]
    console.result(named, console.table(studies.HEADER, rows), as_json=as_json)
    for problem in unreadable:
        console.say("left out", problem)
    console.say("page", str(page))
    return 0
