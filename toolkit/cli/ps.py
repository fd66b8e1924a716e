"""`toolkit ps`."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.runs import status
from toolkit.runs.store import all_runs
from toolkit.units import human_time


@click.command("ps")
@click.option("--all", "-a", "show_all", is_flag=True, help="All runs, not only the newest twenty.")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Directory of the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(show_all: bool, runs: Path, as_json: bool) -> None:
    """List the runs of this directory, the newest first, and their states.

    \b
    Examples:
      toolkit ps
      toolkit ps --all --json
    """
    known = all_runs(runs)
    rows = status.of_all(known if show_all else known[:20])
    if as_json:
        console.out_json([row._asdict() for row in rows])
    elif not rows:
        console.note(f"no runs in {runs}; next: toolkit run --image IMAGE train.py")
    else:
        header = ("RUN", "JOB", "STATE", "TIME", "EXIT", "SHAPE", "NODES", "RESULT")
        console.out(console.table(header, [_cells(row) for row in rows]))
        if len(known) > len(rows):
            console.note(f"{len(known) - len(rows)} more: toolkit ps --all")


def _cells(row: status.Status) -> tuple[object, ...]:
    code = "-" if row.exit_code is None else row.exit_code
    return (row.run, row.job_id or "-", row.state, human_time(row.seconds), code, row.shape, row.nodes or "-", row.message)
