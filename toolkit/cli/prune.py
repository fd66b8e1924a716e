"""`toolkit prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.errors import ToolkitError, UsageError
from toolkit.units import counted, human_age, human_size

if TYPE_CHECKING:
    from toolkit.runs.removal import Removal


@click.command("prune")
@click.option("--older-than", metavar="AGE", help="Runs that ended longer ago: 30d, 12h, 8w.")
@click.option(
    "--keep", metavar="N", type=click.IntRange(0), help="Never the newest N of a directory."
)
@click.option("--all-directories", "-A", is_flag=True, help="In all directories of runs.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Directory of the runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(
    older_than: str | None,
    keep: int | None,
    all_directories: bool,
    yes: bool,
    runs: Path,
    as_json: bool,
) -> None:
    """List old runs, and with --yes remove them. Runs that have not ended always stay.

    \b
    Examples:
      toolkit prune --older-than 30d
      toolkit prune --older-than 30d --keep 10 --yes
      toolkit prune --all-directories --keep 5
    """
    from toolkit.images.store.prune import seconds
    from toolkit.records import index
    from toolkit.records.store import all_runs
    from toolkit.runs import removal

    if older_than is None and keep is None:
        step = "toolkit prune --older-than 30d, or --keep 10"
        raise UsageError("say which runs are old", place="--older-than, --keep", next_step=step)
    age = seconds(older_than, "--older-than") if older_than else None
    places = index.known().directories if all_directories else (runs,)
    removals = [
        removed_run
        for place in places
        for removed_run in removal.candidates(all_runs(place), older_than=age, keep=keep)
    ]
    if yes:
        removals = [
            removed_run if removed_run.reason else _removed(removed_run) for removed_run in removals
        ]
    if as_json:
        import msgspec

        console.out_json({"removed": yes, "runs": msgspec.to_builtins(removals)})
    else:
        _show(removals, removed=yes)


def _removed(removed_run: Removal) -> Removal:
    """Remove a run; return why it is still there, if it is."""
    from msgspec.structs import replace

    from toolkit.records.store import Paths
    from toolkit.runs import removal

    try:
        removal.remove([Paths(Path(removed_run.directory))])
    except ToolkitError as error:
        return replace(removed_run, reason=error.cause)
    return removed_run


def _show(removals: list[Removal], *, removed: bool) -> None:
    word = "removed" if removed else "would go"
    rows = [
        (
            removed_run.directory,
            human_size(removed_run.size),
            human_age(removed_run.age),
            f"stays: {removed_run.reason}" if removed_run.reason else word,
        )
        for removed_run in removals
    ]
    if rows:
        console.out(console.table(("RUN", "SIZE", "AGE", ""), rows))
    going = [removed_run for removed_run in removals if not removed_run.reason]
    size = human_size(sum(removed_run.size for removed_run in going))
    runs = counted(len(going), "run")
    step = "" if removed or not going else "; remove them: the same with --yes"
    console.note(console.subject("freed" if removed else "would free", f"{size}, {runs}{step}"))
