"""`toolkit rm`."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.options import complete_runs
from toolkit.records.store import find
from toolkit.runs import removal
from toolkit.units import human_size


@click.command("rm")
@click.argument(
    "run_names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option("--cancel", is_flag=True, help="Cancel runs that have not ended, and wait for it.")
@click.option("--force", is_flag=True, help="Also if it is unknown whether a run has ended.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Directory of the runs.",
)
def command(run_names: tuple[str, ...], cancel: bool, force: bool, runs: Path) -> None:
    """Remove runs: their directories with scripts, logs and whatever else is in them.

    Slurm is asked about each run that left no outcome. If one has not ended, nothing is removed.
    Symbolic links are removed, and what they lead to stays.

    \b
    Examples:
      toolkit rm train-0007 train-0008
      toolkit rm --cancel 4711
    """
    for name in run_names:
        removal.require_no_link(Path(name))
        removal.require_no_link(runs / name)
    chosen = {paths.directory: paths for name in run_names for paths in (find(name, runs),)}
    freed = removal.remove(list(chosen.values()), cancel=cancel, force=force)
    names = ", ".join(paths.name for paths in chosen.values())
    console.note(console.subject("removed", f"{names} ({human_size(freed)})"))
