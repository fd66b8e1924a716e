"""Expand a sweep into a job array, whose elements run one script with different arguments.

``--sweep lr=0.1,0.01 --sweep batch=32,64`` has four points.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator, Sequence

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.job import Job
from toolkit.model.run import Point
from toolkit.slurm.hostlist import task_ids, task_ranges

_AXIS = re.compile(r"(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(?P<values>.*)\Z", re.DOTALL)
_MAX_POINTS = 10_000  # Slurm itself has a limit too, usually a lower one.


def axes(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse ``lr=0.1,0.01`` into a name and its values; a value with a comma is in double quotes.

    Raises:
        UsageError: a text has another form, has no value, or names something twice.
    """
    parsed: dict[str, tuple[str, ...]] = {}
    for text in texts:
        match = _AXIS.match(text)
        values = _values(match["values"]) if match else ()
        is_twice = len(set(values)) < len(values) or (match and match["name"] in parsed)
        if not match or not values or "" in values or is_twice:
            raise UsageError(
                f"expected NAME=VALUE,VALUE, each name and value once, got {text!r}",
                place="--sweep",
                next_step="--sweep lr=0.1,0.01",
            )
        parsed[match["name"]] = values
    return parsed


def _values(text: str) -> tuple[str, ...]:
    """Split text at its commas; return nothing if quotes are not closed or it has several lines."""
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error:
        return ()
    return tuple(rows[0]) if len(rows) == 1 and "\n" not in text and "\r" not in text else ()


def points(job: Job) -> tuple[Point, ...]:
    """Return all points of a job's sweep, the last name varying fastest; none without a sweep.

    Raises:
        UsageError: an axis is not valid.
    """
    if not job.sweep:
        return ()
    parsed = axes(job.sweep)
    rows = (tuple(zip(parsed, row, strict=True)) for row in itertools.product(*parsed.values()))
    return tuple(
        Point(
            number=number,
            values=tuple((name.lstrip("-"), value) for name, value in row),
            arguments=tuple(word for name, value in row for word in _words(name, value)),
        )
        for number, row in enumerate(rows)
    )


def _words(name: str, value: str) -> tuple[str, ...]:
    flag = name if name.startswith("-") else f"--{name}"
    # argparse would read a value that begins with a dash as an option.
    if value.startswith("-") and flag.startswith("--"):
        return (f"{flag}={value}",)
    return flag, value


def findings(job: Job) -> Iterator[ToolkitError]:
    """Yield what is wrong with a job's array, parts of which Slurm passes over, and its sweep."""
    array = "" if job.array is None else str(job.array)
    numbers, limit, at_once = array.strip("[]").partition("%")
    parts = [*filter(None, numbers.split(","))] or [""]
    if array and (len(task_ranges(array)) < len(parts) or (limit and not at_once.isdecimal())):
        yield UsageError(
            f"{array!r} is no list of the elements of a job array",
            place="--array",
            next_step="numbers and rising ranges: --array 0-9, or 1,4,7, or 0-99:5%4",
        )
        return
    try:
        parsed = axes(job.sweep)
    except UsageError as error:
        yield error
        return
    if not parsed:
        return
    count, (least, most) = math.prod(map(len, parsed.values())), job.node_range
    if count > _MAX_POINTS:
        yield UsageError(
            f"the sweep has {count} points; the limit is {_MAX_POINTS}",
            place="--sweep",
            next_step="give fewer values",
        )
    if least < most:
        yield UsageError(
            "a sweep needs a fixed number of nodes",
            place="--nodes",
            next_step=f"--nodes {most}",
        )
    last = max(task_ids(array), default=0)
    if last >= count:
        yield UsageError(
            f"the sweep has the points 0 to {count - 1}; it has no point {last}",
            place="--array",
            next_step=f"--array 0-{count - 1}",
        )
