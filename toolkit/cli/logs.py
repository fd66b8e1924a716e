"""`toolkit logs`."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.follow import follow_run
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import run_argument, runs_option
from toolkit.runs import logs
from toolkit.runs.directories import find


@click.command("logs")
@run_argument
@click.option(
    "--follow",
    "-f",
    "following",
    is_flag=True,
    help="Follow until the job has ended; the exit code is the job's.",
)
@click.option("--rank", type=click.IntRange(0), help="Print only the lines of this rank.")
@click.option("--raw", is_flag=True, help="Print every line, also the noise of healthy runs.")
@runs_option
@cluster_option()
def command(run: str | None, following: bool, rank: int | None, raw: bool, runs: Path) -> int:
    """Show or follow what the ranks of a run printed.

    Each line begins with its rank or node. RUN (default: the newest run) is the name of a run, its
    directory, or its job id, which is found in all your directories.

    \b
    Examples:
      toolkit logs
      toolkit logs -f train-0007
      toolkit logs 4711
      toolkit logs --rank 3 train-0007
    """
    chosen = find(run, runs)
    _ = chosen.job_id  # the run was submitted

    def is_wanted(line: logs.Line) -> bool:
        return (rank is None or line.rank == rank) and (raw or not logs.is_noise(line.text))

    if following and not chosen.has_ended:
        return follow_run(chosen, wanted=is_wanted)
    printed, ranks = False, set[int]()
    for line in logs.Tail(chosen).read(last=True):
        printed = True
        ranks |= set() if line.rank is None else {line.rank}
        if is_wanted(line):
            console.out(f"{line.label or 'batch'}| {line.text}")
    if not printed:
        console.note(f"{chosen.name} has printed nothing yet; next: toolkit logs -f {chosen.word}")
    elif rank is not None and rank not in ranks:
        known = "no line has the number of a rank"
        if ranks:
            known = f"ranks {min(ranks)} to {max(ranks)} have"
            if len(ranks) == 1:
                known = f"only rank {min(ranks)} has"
        console.note(f"rank {rank} of {chosen.name} has printed nothing; {known}")
    return 0
