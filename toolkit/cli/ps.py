"""`toolkit ps`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, runs_option
from toolkit.runs import index, status
from toolkit.runs.access import RunDirectory
from toolkit.runs.store import Paths, all_runs, newest_first
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
    known = _everywhere() if all_directories else all_runs(runs)
    if known and not all_directories and RunDirectory(runs).is_own:
        index.remember(runs)  # which may have been moved here
    shown = known if show_all else known[:_MOST]
    rows = status.of_all(shown)
    if as_json:
        pairs = zip(rows, shown, strict=True)
        console.out_json(
            [
                {**row._asdict(), "directory": str(paths.directory.absolute())}
                for row, paths in pairs
            ]
        )
    elif not rows:
        console.note(
            "no runs are known; next: toolkit run --help" if all_directories else _none(runs)
        )
    else:
        header = (*_HEADER, "DIRECTORY") if all_directories else _HEADER
        places = [
            (os.path.relpath(paths.directory.parent),) if all_directories else () for paths in shown
        ]
        console.out(
            console.table(
                header, [(*_cells(row), *place) for row, place in zip(rows, places, strict=True)]
            )
        )
        if len(known) > len(rows):
            everywhere = " --all-directories" if all_directories else ""
            console.note(f"{len(known) - len(rows)} more: toolkit ps --all{everywhere}")


def _everywhere() -> list[Paths]:
    """Return the runs of all known directories, and tell which of these cannot be seen."""
    directories, missing = index.known()
    for entry in missing:
        where = f"last seen on {entry.host}"
        console.say("not seen", f"{entry.directory} is not on this host; {where}")
    return newest_first(paths for directory in directories for paths in all_runs(directory))


def _none(runs: Path) -> str:
    others = index.directories_except(runs)
    return f"no runs in {runs}; next: toolkit {'ps --all-directories' if others else 'run --help'}"


def _cells(row: status.Status) -> tuple[object, ...]:
    code = "-" if row.exit_code is None else row.exit_code
    return (
        row.run,
        row.job_id or "-",
        row.state,
        human_time(row.seconds),
        code,
        row.shape,
        row.nodes or "-",
        row.message,
    )
