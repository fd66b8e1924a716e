"""Sweeps: one job array, whose elements run the same script with other arguments: ``--sweep lr=0.1,0.01 --sweep batch=32,64``."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence

from toolkit.errors import ToolkitError, UsageError, nearest
from toolkit.model.job import Job
from toolkit.model.source import Source
from toolkit.model.ways import Point, PointOutcome
from toolkit.slurm import queue

_AXIS = re.compile(r"(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(?P<values>.*)\Z", re.DOTALL)
_MOST = 10_000  # points; Slurm itself has a limit too, usually lower
# All elements of an array have the same of these.
_RESOURCES = (
    "nodes",
    "gpus",
    "gpus-per-node",
    "ntasks-per-node",
    "cpus-per-task",
    "mem",
    "time",
    "partition",
    "image",
)


def axes(texts: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """``lr=0.1,0.01`` as a name and its values; a value with a comma stands in double quotes.

    Raises:
        UsageError: it has another form, no value, or one twice.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for text in texts:
        match = _AXIS.match(text)
        values = _values(match["values"]) if match else ()
        if not match or not values or "" in values:
            raise UsageError(
                f"{text!r} is not NAME=VALUE,VALUE",
                place="--sweep",
                next_step="--sweep lr=0.1,0.01",
            )
        if len(set(values)) < len(values) or match["name"] in dict(found):
            raise UsageError(
                f"{text!r} names something twice",
                place="--sweep",
                next_step="leave one of them out",
            )
        found.append((match["name"], values))
    return found


def _values(text: str) -> tuple[str, ...]:
    """What stands between commas; nothing where quotes or lines do not end."""
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error:
        return ()
    return tuple(rows[0]) if len(rows) == 1 and "\n" not in text and "\r" not in text else ()


def points(job: Job) -> tuple[Point, ...]:
    """All points of a sweep, the last name varying fastest; empty where the job is none.

    Raises:
        UsageError: an axis is not one.
    """
    if not job.sweep:
        return ()
    named = axes(job.sweep)
    names = [name for name, _ in named]
    return tuple(
        Point(
            number=number,
            values=tuple(
                (name.lstrip("-"), value) for name, value in zip(names, chosen, strict=True)
            ),
            arguments=tuple(
                word
                for name, value in zip(names, chosen, strict=True)
                for word in _words(name, value)
            ),
        )
        for number, chosen in enumerate(itertools.product(*(values for _, values in named)))
    )


def _words(name: str, value: str) -> tuple[str, ...]:
    flag = name if name.startswith("-") else f"--{name}"
    return (
        (f"{flag}={value}",) if value.startswith("-") and flag.startswith("--") else (flag, value)
    )


def array(job: Job) -> str | int | None:
    """The value of ``--array``: every point, but for those that were not asked for."""
    if not job.sweep or job.array is not None:
        return job.array
    try:
        count = len(points(job))
    except UsageError:
        return None
    return f"0-{count - 1}" if count > 1 else "0"


def findings(job: Job, source: Source) -> list[ToolkitError]:
    """What is wrong with a sweep."""
    if not job.sweep:
        return []
    try:
        named, count = axes(job.sweep), len(points(job))
    except UsageError as error:
        return [error]
    found: list[ToolkitError] = []
    for name, values in named:
        if name in _RESOURCES and source.option(name) is None:
            each = f"for {name} in {' '.join(values)}; do toolkit run --detach --{name} ${name} ...; done"
            cause = f"{name} is no argument of the script, and all points of one job array have the same nodes, GPUs and time"
            found.append(
                UsageError(
                    cause,
                    place="--sweep",
                    next_step=f"a sweep for each: {each}; or --sweep=--{name}=... for an argument",
                )
            )
    if count > _MOST:
        found.append(
            UsageError(
                f"{count} points are more than {_MOST}", place="--sweep", next_step="fewer values"
            )
        )
    least, most = job.node_range
    if least < most:
        found.append(
            UsageError(
                "the points of a sweep have a fixed number of nodes",
                place="--nodes",
                next_step=f"--nodes {most}",
            )
        )
    beyond = [number for number in numbers(job.array) if number >= count]
    if beyond:
        cause = f"the sweep has the points 0 to {count - 1}, and no {beyond[0]}"
        found.append(UsageError(cause, place="--array", next_step=f"--array 0-{count - 1}"))
    return found


def warnings(job: Job, source: Source) -> list[str]:
    """Names that the script, as it was read, does not know."""
    if not source.options or not job.sweep:
        return []
    known = [option.flag for option in source.options]
    flags = [point if point.startswith("-") else f"--{point}" for point, _ in axes(job.sweep)]
    return [
        f"--sweep {flag.lstrip('-')}: the script has no option {flag}"
        + (f"; close: {close}" if (close := nearest(flag, known)) else "")
        for flag in flags
        if flag not in known
    ]


def numbers(array: str | int | None) -> list[int]:
    """Return the task ids that a value of ``--array`` names: ``0-3,7`` or ``0-8:4%2``."""
    return queue.task_ids(str(array)) if array is not None else []


def failed(outcomes: Sequence[PointOutcome]) -> list[int]:
    """The points that have ended otherwise than well."""
    return [point.number for point in outcomes if point.exit_code not in (0, None)]


def told(outcomes: Sequence[PointOutcome], what: str) -> str:
    """``4 points: 3 done, 1 failed (2)``; ``what`` they are: ``point``, or ``element`` of an array that is no sweep."""
    wrong = failed(outcomes)
    unknown = [point.number for point in outcomes if point.state == "UNKNOWN"]
    waiting = sum(point.exit_code is None for point in outcomes) - len(unknown)
    parts = [f"{len(outcomes) - len(wrong) - waiting - len(unknown)} done"]
    parts += [f"{waiting} to come"] if waiting else []
    parts += [f"{len(unknown)} unknown ({','.join(map(str, unknown))})"] if unknown else []
    parts += [f"{len(wrong)} failed ({','.join(map(str, wrong))})"] if wrong else []
    return f"{len(outcomes)} {what}{'s' if len(outcomes) != 1 else ''}: {', '.join(parts)}"


def rows(
    planned: Sequence[Point], outcomes: Sequence[PointOutcome]
) -> tuple[list[str], list[list[object]]]:
    """A table: each point's number, its values, how it came out, and the results that are no lists."""
    values = {point.number: dict(point.values) for point in planned}
    names = list(dict.fromkeys(name for point in planned for name, _ in point.values))
    results = [
        key
        for key in dict.fromkeys(key for point in outcomes for key in point.results)
        if key not in names
        and any(
            not isinstance(point.results.get(key), dict | list)
            for point in outcomes
            if key in point.results
        )
    ]
    header = ["POINT", *names, "STATE", "EXIT", *results]
    table: list[list[object]] = []
    for point in outcomes:
        own = [values.get(point.number, {}).get(name, "-") for name in names]
        code = "-" if point.exit_code is None else point.exit_code
        table.append(
            [
                point.number,
                *own,
                point.state,
                code,
                *(_cell(point.results.get(key)) for key in results),
            ]
        )
    return header, table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
