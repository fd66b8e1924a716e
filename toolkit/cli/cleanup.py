"""The commands that end and remove runs: `toolkit cancel`, `rm` and `prune`."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, run_names_argument, runs_option
from toolkit.errors import ToolkitError, UsageError
from toolkit.images.store.prune import seconds
from toolkit.runs import directories
from toolkit.runs.directories import find
from toolkit.runs.removal import (
    Removal,
    candidates,
    remove,
    require_no_link,
)
from toolkit.runs.removal import (
    cancel as cancel_run,
)
from toolkit.runs.run import Run
from toolkit.units import counted, human_age, human_size


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
    for run in [find(name, runs) for name in run_names]:
        if cancel_run(run):
            console.say("cancelled", f"{run.name}, job {run.job_id}")
        else:
            state = run.outcome.state if run.outcome else "Slurm has forgotten it"
            console.say("ended", f"{run.name} has ended already: {state}")


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
        require_no_link(Path(name))
        require_no_link(runs / name)
    chosen = {run.directory: run for run in (find(name, runs) for name in run_names)}
    freed = remove(list(chosen.values()), cancel=cancel, force=force)
    names = ", ".join(run.name for run in chosen.values())
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
    if older_than is None and keep is None:
        step = "toolkit prune --older-than 30d, or --keep 10"
        raise UsageError(
            "no age and no number of runs is given", place="--older-than, --keep", next_step=step
        )
    age = seconds(older_than, "--older-than") if older_than else None
    places = directories.known() if all_directories else (runs,)
    removals = [
        _removed(removal) if yes and not removal.reason else removal
        for place in places
        for removal in candidates(directories.all_runs(place), older_than=age, keep=keep)
    ]
    if as_json:
        console.out_json({"removed": yes, "runs": removals})
    else:
        _show(removals, is_removed=yes)


def _removed(candidate: Removal) -> Removal:
    """Remove a run; return why it is still there, if it is."""
    try:
        remove([Run(Path(candidate.directory))])
    except ToolkitError as error:
        return replace(candidate, reason=error.cause)
    return candidate


def _show(removals: list[Removal], *, is_removed: bool) -> None:
    word = "removed" if is_removed else "would be removed"
    rows = [
        (
            removal.directory,
            human_size(removal.size),
            human_age(removal.age),
            f"kept: {removal.reason}" if removal.reason else word,
        )
        for removal in removals
    ]
    if rows:
        console.out(console.table(("RUN", "SIZE", "AGE", ""), rows))
    going = [removal.size for removal in removals if not removal.reason]
    step = "" if is_removed or not going else "; next: the same with --yes removes them"
    freed = f"{human_size(sum(going))}, {counted(len(going), 'run')}"
    console.say("freed" if is_removed else "would free", f"{freed}{step}")
