"""`toolkit ps`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, runs_option
from toolkit.runs import directories, status
from toolkit.runs.run import Run
from toolkit.units import human_time

_HEADER = ("RUN", "JOB", "STATE", "TIME", "EXIT", "SHAPE", "NODES", "RESULT")
_MOST = 20


@click.command("ps")
@click.option(
    "--all", "-a", "show_all", is_flag=True, help="List all runs, not only the newest twenty."
)
@click.option(
    "--all-directories", "-A", is_flag=True, help="List the runs of all your directories."
)
@runs_option
@json_option
@cluster_option()
def command(show_all: bool, all_directories: bool, runs: Path, as_json: bool) -> None:
    """List the runs of this directory and their states, the newest first.

    \b
    Examples:
      toolkit ps
      toolkit ps --all-directories
      toolkit ps --all --json
    """
    places = directories.known() if all_directories else (runs,)
    known = directories.all_runs(*places)
    if known and not all_directories and Run(runs).is_own:
        directories.remember(runs)  # which may have been moved here
    shown = known if show_all else known[:_MOST]
    rows = status.rows(shown)
    if as_json:
        console.out_json(
            [
                {**row._asdict(), "directory": str(run.directory.absolute())}
                for row, run in zip(rows, shown, strict=True)
            ]
        )
    elif not rows:
        elsewhere = not all_directories and directories.others(runs)
        where = "no runs are known" if all_directories else f"no runs in {runs}"
        step = "ps --all-directories" if elsewhere else "run --help"
        console.note(f"{where}; next: toolkit {step}")
    else:
        header = (*_HEADER, "DIRECTORY") if all_directories else _HEADER
        cells = [
            (
                row.run,
                row.job_id or "-",
                row.state,
                human_time(row.seconds),
                "-" if row.exit_code is None else row.exit_code,
                row.shape,
                row.nodes or "-",
                row.message,
                os.path.relpath(run.directory.parent),
            )
            for row, run in zip(rows, shown, strict=True)
        ]
        console.out(console.table(header, [row[: len(header)] for row in cells]))
        if len(known) > len(rows):
            everywhere = " --all-directories" if all_directories else ""
            console.note(f"{len(known) - len(rows)} more: toolkit ps --all{everywhere}")
