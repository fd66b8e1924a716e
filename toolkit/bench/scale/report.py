"""From measurements to reports: a table, a page, and JSON for later comparisons.

The rows are medians with their spread, speed-up, efficiency and hours.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from toolkit import reports
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.model import Mode, Point, Sample, Straggler, Study
from toolkit.bench.scale.statistics import Spread, spread
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.reports.charts import Axis, Curve, Mark, chart
from toolkit.text import redacted
from toolkit.units import counted, or_dash


class Row(NamedTuple):
    """One point of a study, measured.

    Attributes:
        samples: of its runs.
        size: number of ranks.
        value: the metric.
        rate: work by second: the metric, or its inverse if it is a time.
        speedup: by the smallest size of the same mode and launcher.
        efficiency: the speed-up by the factor of the ranks.
        counts: the point counts for speed-up: it is not oversubscribed, or counts all the same.
        communication_share: of a step, an all-reduce of the gradients; None: unknown, also if it
            took longer than a step.
        step_seconds: the median; 0: unknown.
    """

    point: Point
    samples: tuple[Sample, ...]
    size: int
    value: Spread
    rate: Spread
    speedup: Spread | None
    efficiency: Spread | None
    counts: bool
    communication_share: float | None
    step_seconds: float
    straggler: Straggler | None


class Series(NamedTuple):
    """All points of one mode and launcher, the smallest first."""

    mode: Mode
    launcher: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Return the name for a legend."""
        return f"{self.launcher}, {self.mode}"

    @property
    def counting(self) -> tuple[Row, ...]:
        """Return the rows that say something of scaling."""
        return tuple(row for row in self.rows if row.counts)


def series(study: Study) -> tuple[Series, ...]:
    """Return the measured points of a study by mode and launcher."""
    groups: dict[tuple[Mode, str], list[Row]] = {}
    for point in study.points:
        if samples := study.of(point):
            key = (point.mode, samples[0].launcher)
            groups.setdefault(key, []).append(_row(study, point, samples))
    made = []
    for (mode, launcher), rows in groups.items():
        rows.sort(key=lambda row: (row.size, row.point.nodes))
        base = next((row for row in rows if row.counts), None)
        made.append(Series(mode, launcher, tuple(_scaled(row, base) for row in rows)))
    return tuple(made)


def _row(study: Study, point: Point, samples: tuple[Sample, ...]) -> Row:
    values = [sample.value for sample in samples]
    rates = [1 / value for value in values] if study.options.is_time else values
    step = _known(sample.step_seconds for sample in samples)
    sums = _known(sample.communication.seconds for sample in samples)
    return Row(
        point=point,
        samples=samples,
        size=samples[0].size,
        value=spread(values),
        rate=spread(rates),
        speedup=None,
        efficiency=None,
        counts=not _is_oversubscribed(samples) or bool(study.options.count_oversubscribed),
        communication_share=sums / step if 0 < sums < step else None,
        step_seconds=step,
        straggler=_straggler(samples),
    )


def _is_oversubscribed(samples: Iterable[Sample]) -> bool:
    """Return whether there were more ranks than cores or GPUs: it says nothing of scaling."""
    return any(sample.oversubscribed for sample in samples)


def _known(values: Iterable[float]) -> float:
    """Return the median of the values that are known, which are not 0."""
    return statistics.median(list(filter(None, values)) or [0.0])


def _straggler(samples: Sequence[Sample]) -> Straggler | None:
    """Return the straggler of most runs; one that is slow once may have been unlucky."""
    stragglers = [sample.straggler for sample in samples if sample.straggler]
    ranks = [straggler.ranks for straggler in stragglers]
    return next((s for s in stragglers if ranks.count(s.ranks) * 2 > len(samples)), None)


def _scaled(row: Row, base: Row | None) -> Row:
    """Return the row with its speed-up and efficiency, if it and a smaller one count."""
    if base is None or not row.counts:
        return row
    speedup = row.rate.scaled(1 / base.rate.median)
    return row._replace(speedup=speedup, efficiency=speedup.scaled(base.size / row.size))


def remarks(entry: Series, study: Study) -> Iterator[str]:
    """Yield what the numbers of a series do not show, or must not be read as."""
    if shapes := _shapes(entry, lambda row: _is_oversubscribed(row.samples)):
        reason = study.options.count_oversubscribed
        why = f"counted all the same, because: {reason}" if reason else "says nothing of scaling"
        yield f"{shapes}: oversubscribed, more ranks than cores or GPUs; {why}"
    for before, after in pairwise(entry.counting):
        runs = min(before.value.runs, after.value.runs)
        if runs > 1 and before.value.overlaps(after.value):
            both = f"{_shape(before)} and {_shape(after)}"
            yield f"{both}: the difference is within the spread of the runs"
    if single := _shapes(entry, lambda row: row.counts and row.value.runs < 2):
        yield f"{single}: one run does not show the spread; measure with --runs 3"
    for row in entry.rows:
        if (slow := row.straggler) is not None:
            yield (
                f"{_shape(row)}: straggler rank {', '.join(map(str, slow.ranks[:20]))} on "
                f"{', '.join(slow.hosts[:20])}: {slow.busy_seconds * 1000:.3g} ms of its own work "
                f"in each step, the others {slow.others_seconds * 1000:.3g} ms, and they wait"
            )


def _shapes(entry: Series, is_meant: Callable[[Row], bool]) -> str:
    return ", ".join(_shape(row) for row in entry.rows if is_meant(row))


def _shape(row: Row) -> str:
    return f"{counted(row.point.nodes, 'node')} x {counted(row.size // row.point.nodes, 'rank')}"


def write_reports(study: Study, directory: StudyDirectory) -> None:
    """Write all reports of what is measured so far."""
    write_atomically(directory.json, to_json(study))
    write_atomically(directory.html, page(study))


def page(study: Study) -> str:
    """Return what is measured of a study so far as one HTML page."""
    entries, samples = series(study), study.samples
    directory = shlex.quote(f"{study.directory}/report.json")
    runs = f"{counted(len(samples), 'run')} at {counted(len(study.points), 'point')}"
    planned = len(study.points) * study.options.runs
    dates = [sample.ended[:10] for sample in samples if sample.ended]
    days = f", {min(dates)} to {max(dates)}" if dates else ""
    missing = f"; {planned - len(samples)} of {planned} not measured"
    facts = {**study.origin, "arguments": redacted(shlex.join(study.options.arguments))}
    return reports.render(
        "scale.html.j2",
        title=f"Scaling of {study.options.target}",
        summary=f"Site {study.origin.get('site', '')}, metric {study.options.metric}: {runs}"
        f"{days}{missing if planned > len(samples) else ''}.",
        sections=[
            (entry.name, *table(study, entry), list(remarks(entry, study))) for entry in entries
        ],
        pictures=_pictures(study, entries) if entries else [],
        again=f"toolkit bench scale --again {directory} --directory scale/again",
        facts=[(name, value) for name, value in facts.items() if value],
    )


def table(study: Study, entry: Series) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of a series, for the terminal and the page."""
    _, unit = entry.rows[0].samples[0].units
    header = (
        *("nodes", "ranks", study.options.metric, "spread", "speed-up", "efficiency", "serial"),
        *(f"{unit} h/epoch", "communication", "step", "start"),
    )
    return header, [
        (
            str(row.point.nodes),
            str(row.size),
            f"{row.value.median:.6g}",
            f"{row.value.low:.6g}-{row.value.high:.6g}" if row.value.runs > 1 else "one run",
            "oversubscribed" if not row.counts else _median(row.speedup, ".2f"),
            "-" if not row.counts else _median(row.efficiency, ".0%"),
            or_dash(_serial(entry, row), ".1%"),
            or_dash(
                _known(sample.epoch_seconds for sample in row.samples)
                * row.samples[0].units[0]
                / 3600
                or None,
                ".3g",
            ),
            or_dash(row.communication_share, ".1%"),
            f"{row.step_seconds * 1000:.3g} ms" if row.step_seconds else "-",
            f"{start:.3g} s"
            if (start := _known(sample.start_seconds for sample in row.samples))
            else "-",
        )
        for row in entry.rows
    ]


def _median(value: Spread | None, form: str) -> str:
    return or_dash(value.median if value else None, form)


def _serial(entry: Series, row: Row) -> float | None:
    """Return the serial fraction that explains a speed-up (Karp and Flatt, 1990); None: unknown.

    By Amdahl's law for strong scaling, by Gustafson's for weak scaling.
    """
    factor = row.size / entry.counting[0].size if row.counts else 1.0
    if row.speedup is None or factor == 1:
        return None
    speedup = row.speedup.median
    if entry.mode == "weak":
        return (factor - speedup) / (factor - 1)
    return (1 / speedup - 1 / factor) / (1 - 1 / factor)


def _pictures(study: Study, entries: Sequence[Series]) -> list[tuple[dict[str, object], str]]:
    """Return the charts that a study has values for, each with its caption."""
    metric = study.options.metric
    bars = "Bars are the lowest and the highest run."
    rates = _curves(entries, lambda row: row.value)
    caption = f"{bars} Hollow marks are oversubscribed. Both axes are logarithmic."
    drawn = [(chart(metric, rates, Axis("ranks"), Axis(metric)), caption)]
    if any(len(entry.counting) > 1 for entry in entries):
        curves = _curves(entries, lambda row: row.speedup)
        caption = f"Against the smallest size. {bars}"
        drawn.append((chart("Speed-up", curves, Axis("ranks"), Axis("speed-up")), caption))
        curves = _curves(entries, lambda row: row.efficiency)
        axis = Axis("efficiency", is_log=False, least=1.0, write="{:.0%}".format)
        caption = f"Speed-up divided by the factor of the ranks. {bars}"
        drawn.append((chart("Efficiency", curves, Axis("ranks"), axis), caption))
    if any(row.communication_share for entry in entries for row in entry.rows):
        curves = _curves(
            entries,
            lambda row: spread([row.communication_share]) if row.communication_share else None,
        )
        axis = Axis("all-reduce / step", is_log=False, write="{:.0%}".format)
        caption = "An all-reduce of the gradients' size by the time of a step: an upper limit."
        drawn.append((chart("Share of communication", curves, Axis("ranks"), axis), caption))
    return drawn


def _curves(entries: Sequence[Series], value_of: Callable[[Row], Spread | None]) -> list[Curve]:
    """Return a curve for each series with the rows that have a value."""
    curves = []
    for entry in entries:
        values = [(row, value_of(row)) for row in entry.rows]
        marks = [
            Mark(row.size, value.median, value.low, value.high, not row.counts)
            for row, value in values
            if value
        ]
        curves.append(Curve(entry.name, tuple(marks)))
    return curves
