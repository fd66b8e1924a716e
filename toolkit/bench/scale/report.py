"""The reports of a study: a table, a page, JSON for later comparisons, CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from toolkit import reports
from toolkit.bench.scale import analysis, fits
from toolkit.bench.scale.analysis import Row, Series
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.fits import Fit
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.spread import Spread
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.reports.charts import Axis, Curve, Mark, chart
from toolkit.text import redacted
from toolkit.units import counted, or_dash

_MOST_RUNS = 40  # names of runs that are listed for a point
COLUMNS = (
    *("mode", "launcher", "nodes", "ranks", "runs", "metric", "median", "lowest", "highest"),
    *("speedup", "efficiency", "oversubscribed", "units", "unit", "unit_hours_per_epoch"),
    *("step_seconds", "gradient_bytes", "allreduce_seconds", "communication_share"),
    *("start_seconds", "warm_up_seconds", "warm_up_values", "straggler_ranks", "straggler_hosts"),
)
# A spreadsheet takes a cell that begins with these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_reports(study: Study, directory: StudyDirectory) -> None:
    """Write all reports of what is measured so far."""
    write_atomically(directory.json, to_json(study))
    write_atomically(directory.csv, as_csv(study, analysis.series(study)))
    write_atomically(directory.html, page(study))


def page(study: Study) -> str:
    """Return what is measured of a study so far as one HTML page, with the report itself in it."""
    entries = analysis.series(study)
    fitted = {entry.name: fits.fit(entry) for entry in entries}
    directory = shlex.quote(f"{study.directory}/report.json")
    return reports.render(
        "scale.html.j2",
        title=f"Scaling of {study.options.target}",
        summary=_summary(study),
        sections=[_section(study, entry, fitted[entry.name]) for entry in entries],
        pictures=pictures(study, entries, fitted),
        again=f"toolkit bench scale --again {directory} --directory scale/again",
        facts=_facts(study),
        runs=[
            (row.point.key, ", ".join(row.runs[:_MOST_RUNS]))
            for entry in entries
            for row in entry.rows
        ],
        data=reports.embedded(to_json(study, indent=0)),
    )


def _summary(study: Study) -> str:
    samples = study.samples
    dates = sorted(sample.ended for sample in samples if sample.ended)
    days = list(dict.fromkeys((dates[0][:10], dates[-1][:10]))) if dates else []
    when = f", {' to '.join(days)}" if days else ""
    runs = f"{counted(len(samples), 'run')} at {counted(len(study.points), 'point')}"
    planned = len(study.points) * study.options.runs
    missing = (
        f"; {planned - len(samples)} of {planned} not measured" if planned > len(samples) else ""
    )
    return f"Site {study.origin.site}, metric {study.options.metric}: {runs}{when}{missing}."


def _section(study: Study, entry: Series, fitted: fits.Fit | None) -> dict[str, object]:
    header, rows = table(study, entry)
    sizes = len({row.size for row in entry.counting})
    few = f"No law is fitted: a fit needs {fits.LEAST} sizes that count, and the study has {sizes}"
    return {
        "name": entry.name,
        "header": header,
        "rows": rows,
        "remarks": analysis.remarks(entry, study),
        "law": f"{fits.verdict(fitted) if fitted else few}.",
    }


def _facts(study: Study) -> list[tuple[str, str]]:
    origin = study.origin
    facts = {
        "image": origin.image,
        "image digest": origin.image_digest,
        "lock": origin.lock,
        "script": origin.script,
        "script SHA-256": origin.script_sha256,
        "commit": origin.commit,
        "site": origin.site,
        "Slurm": origin.slurm,
        "toolkit": origin.toolkit,
        "began": origin.began,
        "arguments": redacted(shlex.join(study.options.arguments)),
    }
    return [(name, value) for name, value in facts.items() if value]


def table(study: Study, entry: Series) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of a series, for the terminal and the page."""
    unit = entry.rows[0].units[1]
    header = (
        *("nodes", "ranks", study.options.metric, "spread", "speed-up", "efficiency"),
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
            or_dash(row.unit_hours, ".3g"),
            or_dash(row.communication_share, ".1%"),
            f"{row.step_seconds * 1000:.3g} ms" if row.step_seconds else "-",
            f"{row.start_seconds:.3g} s" if row.start_seconds else "-",
        )
        for row in entry.rows
    ]


def _median(value: Spread | None, form: str) -> str:
    return or_dash(value.median if value else None, form)


def as_csv(study: Study, entries: Sequence[Series]) -> str:
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


_HOLLOW = "Hollow marks are oversubscribed: they say nothing of scaling."
_BARS = "Bars are the lowest and the highest run."
_RANKS = Axis("ranks")

Picture = tuple[dict[str, object], str]


def pictures(
    study: Study, entries: Sequence[Series], fitted: Mapping[str, Fit | None]
) -> list[Picture]:
    """Return the charts that a study has values for, each with its caption."""
    if not entries:
        return []
    drawn = [_metric(study, entries)]
    if any(len(entry.counting) > 1 for entry in entries):
        drawn += [_speedup(entries, fitted), _efficiency(entries)]
    if any(row.communication_share for entry in entries for row in entry.rows):
        drawn.append(_communication(entries))
    return drawn


def _curves(
    entries: Sequence[Series], value_of: Callable[[Row], Spread | float | None]
) -> list[Curve]:
    """Return a curve for each series with the rows that have a value."""
    curves = []
    for entry in entries:
        marks = []
        for row in entry.rows:
            value = value_of(row)
            if isinstance(value, Spread):
                marks.append(Mark(row.size, value.median, value.low, value.high, not row.counts))
            elif value:
                marks.append(Mark(row.size, value, value, value, not row.counts))
        if marks:
            curves.append(Curve(entry.name, tuple(marks)))
    return curves


def _plain(name: str, entries: Sequence[Series], value_of: Callable[[int], float]) -> Curve:
    """Return the line of a function of the number of ranks."""
    sizes = sorted({row.size for entry in entries for row in entry.counting})
    values = [(size, value_of(size)) for size in sizes]
    return Curve(name, tuple(Mark(size, y, y, y) for size, y in values), is_plain=True)


def _metric(study: Study, entries: Sequence[Series]) -> Picture:
    metric = study.options.metric
    title = f"{'Time' if study.options.is_time else 'Rate'}: {metric}"
    drawing = chart(title, _curves(entries, lambda row: row.value), _RANKS, Axis(metric))
    return drawing, f"{_BARS} {_HOLLOW} Both axes are logarithmic."


def _speedup(entries: Sequence[Series], fitted: Mapping[str, Fit | None]) -> Picture:
    base = min(row.size for entry in entries for row in entry.counting)
    curves = _curves(entries, lambda row: row.speedup)
    for entry in entries:
        law = fitted[entry.name]
        if law is not None:
            name = f"{law.law}'s law, {entry.name}"
            curves.append(_plain(name, [entry], partial(fits.speedup, law)))
    curves.append(_plain("ideal", entries, lambda size: size / base))
    return chart(
        "Speed-up", curves, _RANKS, Axis("speed-up")
    ), f"Against the smallest size. {_BARS}"


def _efficiency(entries: Sequence[Series]) -> Picture:
    curves = _curves(entries, lambda row: row.efficiency)
    curves.append(_plain("ideal", entries, lambda _: 1.0))
    axis = Axis("efficiency", is_log=False, least=1.0, write="{:.0%}".format)
    caption = f"Speed-up divided by the factor of the ranks. {_BARS}"
    return chart("Efficiency", curves, _RANKS, axis), caption


def _communication(entries: Sequence[Series]) -> Picture:
    curves = _curves(entries, lambda row: row.communication_share)
    axis = Axis("all-reduce / step", is_log=False, least=0.1, write="{:.0%}".format)
    caption = "An all-reduce of the gradients' size by the time of a step: an upper limit."
    return chart("Share of communication", curves, _RANKS, axis), f"{caption} {_HOLLOW}"
