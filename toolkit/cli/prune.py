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
    found = [
        one
        for place in places
        for one in removal.candidates(all_runs(place), older_than=age, keep=keep)
    ]
    if yes:
        found = [one if one.reason else _removed(one) for one in found]
    if as_json:
        import msgspec

        console.out_json({"removed": yes, "runs": msgspec.to_builtins(found)})
    else:
        _show(found, removed=yes)


def _removed(one: Removal) -> Removal:
    """Remove a run; return why it is still there, if it is."""
    from msgspec.structs import replace

    from toolkit.records.store import Paths
    from toolkit.runs import removal

    try:
        removal.remove([Paths(Path(one.directory))])
    except ToolkitError as error:
        return replace(one, reason=error.cause)
    return one


def _show(found: list[Removal], *, removed: bool) -> None:
    word = "removed" if removed else "would go"
    rows = [
        (
            one.directory,
            human_size(one.size),
            human_age(one.age),
            f"stays: {one.reason}" if one.reason else word,
        )
        for one in found
    ]
    if rows:
        console.out(console.table(("RUN", "SIZE", "AGE", ""), rows))
    going = [one for one in found if not one.reason]
    size = human_size(sum(one.size for one in going))
    runs = counted(len(going), "run")
    step = "" if removed or not going else "; remove them: the same with --yes"
    console.note(console.subject("freed" if removed else "would free", f"{size}, {runs}{step}"))
