"""The commands that end and remove runs: `toolkit cancel`, `rm` and `prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, run_names_argument, runs_option
from toolkit.errors import ToolkitError, UsageError
from toolkit.runs import removal, status
from toolkit.runs.store import find
from toolkit.units import counted, human_age, human_size

if TYPE_CHECKING:
    from toolkit.runs.removal import Removal


@click.command("cancel")
@run_names_argument
@runs_option
@cluster_option()
def cancel(run_names: tuple[str, ...], runs: Path) -> None:
    """Cancel runs, by name or job id; their logs are kept.

    \b
    Examples:
      toolkit cancel train-0007
      toolkit cancel 4711
    """
    for paths in [find(name, runs) for name in run_names]:
        paths.require_own()
        state, outcome = status.current(paths)
        if outcome is not None or state is None:
            state_name = outcome.state if outcome else "Slurm has forgotten it"
            console.say("ended", f"{paths.name} has ended already: {state_name}")
            continue
        submission = status.submission_of(paths)
        status.client_of(submission).cancel(submission.job_id)
        console.say("cancelled", f"{paths.name}, job {submission.job_id}")


@click.command("rm")
@run_names_argument
@click.option(
    "--cancel", is_flag=True, help="Cancel runs that have not ended, and wait until they have."
)
@click.option(
    "--force", is_flag=True, help="Remove a run also if it is unknown whether it has ended."
)
@runs_option
@cluster_option()
def rm(run_names: tuple[str, ...], cancel: bool, force: bool, runs: Path) -> None:
    """Remove runs, with their scripts, logs and all other files.

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
    console.say("removed", f"{names} ({human_size(freed)})")


@click.command("prune")
@click.option("--older-than", metavar="AGE", help="Runs that ended longer ago: 30d, 12h, 8w.")
@click.option(
    "--keep", metavar="N", type=click.IntRange(0), help="Keep the newest N runs of each directory."
)
@click.option("--all-directories", "-A", is_flag=True, help="In all directories of runs.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@runs_option
@json_option
@cluster_option()
def prune(
    older_than: str | None,
    keep: int | None,
    all_directories: bool,
    yes: bool,
    runs: Path,
    as_json: bool,
) -> None:
    """List old runs; with --yes, remove them.

    Runs that have not ended always stay.

    \b
    Examples:
      toolkit prune --older-than 30d
      toolkit prune --older-than 30d --keep 10 --yes
      toolkit prune --all-directories --keep 5
    """
    from toolkit.images.store.prune import seconds
    from toolkit.runs import index, removal
    from toolkit.runs.store import all_runs

    if older_than is None and keep is None:
        step = "toolkit prune --older-than 30d, or --keep 10"
        raise UsageError(
            "no age and no number of runs is given", place="--older-than, --keep", next_step=step
        )
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
        console.out_json({"removed": yes, "runs": removals})
    else:
        _show(removals, removed=yes)


def _removed(removed_run: Removal) -> Removal:
    """Remove a run; return why it is still there, if it is."""
    from msgspec.structs import replace

    from toolkit.runs import removal
    from toolkit.runs.store import Paths

    try:
        removal.remove([Paths(Path(removed_run.directory))])
    except ToolkitError as error:
        return replace(removed_run, reason=error.cause)
    return removed_run


def _show(removals: list[Removal], *, removed: bool) -> None:
    word = "removed" if removed else "would be removed"
    rows = [
        (
            removed_run.directory,
            human_size(removed_run.size),
            human_age(removed_run.age),
            f"kept: {removed_run.reason}" if removed_run.reason else word,
        )
        for removed_run in removals
    ]
    if rows:
        console.out(console.table(("RUN", "SIZE", "AGE", ""), rows))
    going = [removed_run for removed_run in removals if not removed_run.reason]
    size = human_size(sum(removed_run.size for removed_run in going))
    runs = counted(len(going), "run")
    step = "" if removed or not going else "; next: the same with --yes removes them"
    console.say("freed" if removed else "would free", f"{size}, {runs}{step}")
