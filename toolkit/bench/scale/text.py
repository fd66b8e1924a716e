"""A study as a table for the terminal and as CSV. Pure."""

from __future__ import annotations

import csv
import io

from toolkit.bench.scale.analysis import Row, Series
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.spread import Spread
from toolkit.units import or_dash

COLUMNS = (
    *("mode", "launcher", "nodes", "ranks", "runs", "metric", "median", "lowest", "highest"),
    *("speedup", "efficiency", "oversubscribed", "units", "unit", "unit_hours_per_epoch"),
    *("step_seconds", "gradient_bytes", "allreduce_seconds", "communication_share"),
    *("start_seconds", "warm_up_seconds", "warm_up_values", "straggler_ranks", "straggler_hosts"),
)
# A spreadsheet takes a cell that begins with these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(study: Study, entry: Series) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of a series for the terminal."""
    unit = entry.rows[0].units[1]
    header = (
        *("nodes", "ranks", study.options.metric, "spread", "speed-up", "efficiency"),
        *(f"{unit} h/epoch", "communication", "step"),
    )
    return header, [
        (
            str(row.point.nodes),
            str(row.size),
            f"{row.value.median:.6g}",
            f"{row.value.low:.6g}-{row.value.high:.6g}" if row.value.runs > 1 else "one run",
            "oversubscribed" if not row.counts else median_of(row.speedup, ".2f"),
            "-" if not row.counts else median_of(row.efficiency, ".0%"),
            or_dash(row.unit_hours, ".3g"),
            or_dash(row.communication_share, ".1%"),
            f"{row.step_seconds * 1000:.3g} ms" if row.step_seconds else "-",
        )
        for row in entry.rows
    ]


def median_of(value: Spread | None, form: str) -> str:
    """Format the median of a spread; ``-`` if there is none."""
    return or_dash(value.median if value else None, form)


def as_csv(study: Study, entries: tuple[Series, ...]) -> str:
    """Return all points as CSV; what is unknown is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in entries:
        for row in entry.rows:
            writer.writerow([_cell(value) for value in _values(study, entry, row)])
    return stream.getvalue()


def _values(study: Study, entry: Series, row: Row) -> tuple[object, ...]:
    slow = row.straggler
    return (
        *(entry.mode, entry.launcher, row.point.nodes, row.size, row.value.runs),
        *(study.options.metric, row.value.median, row.value.low, row.value.high),
        row.speedup.median if row.speedup else None,
        row.efficiency.median if row.efficiency else None,
        "yes" if row.oversubscribed else "no",
        *(*row.units, row.unit_hours, row.step_seconds or None),
        *(row.communication.bytes or None, row.communication.seconds or None),
        *(row.communication_share, row.start_seconds or None, row.warm_up_seconds or None),
        row.warm_up,
        " ".join(map(str, slow.ranks)) if slow else None,
        " ".join(slow.hosts) if slow else None,
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.8g}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
