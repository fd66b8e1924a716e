"""Summarize the outcomes of the elements of a job array."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.model.plan import Point
from toolkit.model.run import PointOutcome
from toolkit.units import counted


def failed_points(outcomes: Sequence[PointOutcome]) -> list[int]:
    """Return the numbers of the points that have ended and did not succeed."""
    return [point.number for point in outcomes if point.exit_code not in (0, None)]


def summary(outcomes: Sequence[PointOutcome], noun: str) -> str:
    """Return a line such as ``4 points: 3 done, 1 failed (2)``.

    Args:
        outcomes: of all elements.
        noun: ``point``, or ``element`` for an array that is not a sweep.
    """
    failed = failed_points(outcomes)
    unknown = [point.number for point in outcomes if point.state == "UNKNOWN"]
    waiting = sum(point.exit_code is None for point in outcomes) - len(unknown)
    parts = [f"{len(outcomes) - len(failed) - waiting - len(unknown)} done"]
    parts += [f"{waiting} to come"] if waiting else []
    parts += [f"{len(unknown)} unknown ({','.join(map(str, unknown))})"] if unknown else []
    parts += [f"{len(failed)} failed ({','.join(map(str, failed))})"] if failed else []
    return f"{counted(len(outcomes), noun)}: {', '.join(parts)}"


def table(
    planned: Sequence[Point], outcomes: Sequence[PointOutcome]
) -> tuple[list[str], list[list[object]]]:
    """Return the header and the rows of a table of points.

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
    rows: list[list[object]] = [
        [
            point.number,
            *(values.get(point.number, {}).get(name, "-") for name in names),
            point.state,
            "-" if point.exit_code is None else point.exit_code,
            *(_cell(point.results.get(key)) for key in results),
        ]
        for point in outcomes
    ]
    return ["POINT", *names, "STATE", "EXIT", *results], rows


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
