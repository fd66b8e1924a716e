"""`toolkit results`: what the points of a sweep printed last, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import run_argument, runs_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.model.plan import Point
    from toolkit.model.run import PointOutcome


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
    from toolkit.runs import status
    from toolkit.runs.store import find

    paths = find(run, runs)
    plan = paths.read_plan()
    if not plan.array:
        _of_one(status.current(paths)[1], paths.name, as_json=as_json)
        return
    points = status.elements_with_earlier(paths)
    if as_json:
        import msgspec

        values = {point.number: dict(point.values) for point in plan.points}
        console.out_json(
            [
                {"run": name, "values": values.get(point.number, {}), **msgspec.to_builtins(point)}
                for name, point in points
            ],
        )
        return
    console.out(table(plan.points, [point for _, point in points]))
    for name in dict.fromkeys(name for name, _ in points if name != paths.name):
        numbers = ",".join(str(point.number) for other, point in points if other == name)
        console.note(f"from {name}: {numbers}")


def _of_one(came_out: object, name: str, *, as_json: bool) -> None:
    from toolkit.model.run import Outcome

    results = came_out.results if isinstance(came_out, Outcome) else {}
    if as_json:
        console.out_json(results)
    elif results:
        console.out(console.mapping(results))
    else:
        yet = "" if isinstance(came_out, Outcome) else " yet"
        where = "a script prints them as one line of JSON, at its end"
        console.note(f"{name} has no results{yet}: {where}")


def table(planned: Sequence[Point], outcomes: Sequence[PointOutcome]) -> str:
    """Return a table with a row for each point."""
    from toolkit.runs import points

    header, rows = points.table(planned, outcomes)
    return console.table(header, rows)
