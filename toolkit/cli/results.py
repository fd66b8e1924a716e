"""`toolkit results`: what the points of a sweep printed last, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import run_argument, runs_option
from toolkit.model.plan import Point
from toolkit.model.run import PointOutcome
from toolkit.runs import status
from toolkit.runs.directories import find
from toolkit.runs.run import Run


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
def command(run: str | None, as_json: bool, runs: Path) -> None:
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
    console.out(table(chosen.plan.points, [point for _, point in points]))
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


def table(planned: Sequence[Point], outcomes: Sequence[PointOutcome]) -> str:
    """Return a table with a row for each point.

    A row has the point's number, its values, its state, its exit code, and the results that are
    not lists or mappings.
    """
    values = {point.number: dict(point.values) for point in planned}
    names = list(dict.fromkeys(name for point in planned for name, _ in point.values))
    scalars = dict.fromkeys(
        key
        for point in outcomes
        for key, value in point.results.items()
        if not isinstance(value, dict | list)
    )
    results = [key for key in scalars if key not in names]
    rows = [
        [
            point.number,
            *(values.get(point.number, {}).get(name, "-") for name in names),
            point.state,
            "-" if point.exit_code is None else point.exit_code,
            *(
                f"{value:.4g}" if isinstance(value, float) else "-" if value is None else value
                for value in map(point.results.get, results)
            ),
        ]
        for point in outcomes
    ]
    return console.table(["POINT", *names, "STATE", "EXIT", *results], rows)
