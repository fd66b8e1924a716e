"""`toolkit ps`, `logs` and `results`: the runs, what they printed, and what came out."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import json_option, points_table, run_argument, runs_option
from toolkit.runs import directories, logs, status
from toolkit.runs.directories import find
from toolkit.runs.run import Run
from toolkit.units import human_time

_HEADER = ("RUN", "JOB", "STATE", "TIME", "EXIT", "SHAPE", "NODES", "RESULT")
_MOST_RUNS = 20


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
def ps(show_all: bool, all_directories: bool, runs: Path, as_json: bool) -> None:
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
    shown = known if show_all else known[:_MOST_RUNS]
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
def show_logs(run: str | None, following: bool, rank: int | None, raw: bool, runs: Path) -> int:
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
        from toolkit.cli.follow import follow_run  # with the explanation of failures

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


@click.command("results")
@run_argument
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print as JSON, with results that are lists or objects as well.",
)
@runs_option
@cluster_option()
def results(run: str | None, as_json: bool, runs: Path) -> None:
    """Show the results of a run, or of each point of a sweep.

    The result of RUN (default: the newest run) is the last JSON object that its first rank printed.
    A sweep has a row for each point, also while it goes on; a rerun of its failed points also shows
    those that had succeeded before.

    \b
    Examples:
      toolkit results
      toolkit results train-0007
      toolkit results --json train-0007
    """
    chosen = find(run, runs)
    if not chosen.plan.array:
        status.query(chosen)
        _show_one(chosen, as_json=as_json)
        return
    points = status.elements_with_earlier(chosen)
    if as_json:
        values = {point.number: dict(point.values) for point in chosen.plan.points}
        console.out_json(
            [
                {"run": name, "values": values.get(point.number, {}), **msgspec.to_builtins(point)}
                for name, point in points
            ],
        )
        return
    console.out(points_table(chosen.plan.points, [point for _, point in points]))
    for name in dict.fromkeys(name for name, _ in points if name != chosen.name):
        numbers = ",".join(str(point.number) for other, point in points if other == name)
        console.note(f"from {name}: {numbers}")


def _show_one(run: Run, *, as_json: bool) -> None:
    results = run.outcome.results if run.outcome else {}
    if as_json:
        console.out_json(results)
    elif results:
        console.out(console.mapping(results))
    else:
        yet = "" if run.outcome else " yet"
        where = "a script prints them as one line of JSON, at its end"
        console.note(f"{run.name} has no results{yet}: {where}")
