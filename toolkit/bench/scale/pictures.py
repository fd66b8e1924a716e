"""The charts of a study: metric, speed-up, efficiency, communication, prediction. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toolkit.bench.scale import fits
from toolkit.bench.scale.analysis import Row, Series
from toolkit.bench.scale.charts import Axis, Curve, Mark, chart
from toolkit.bench.scale.fits import Fit
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.spread import Spread

_HOLLOW = "Hollow marks are oversubscribed: they say nothing of scaling."
_BARS = "Bars are the lowest and the highest run."


class Picture(NamedTuple):
    """A chart with its caption."""

    svg: str
    caption: str


def pictures(
    study: Study,
    entries: Sequence[Series],
    fitted: Mapping[str, Fit | None],
) -> list[Picture]:
    """Return the charts that a study has values for."""
    if not entries:
        return []
    drawn = [_metric(study, entries)]
    if any(len(entry.counting) > 1 for entry in entries):
        drawn += [_speedup(entries, fitted), _efficiency(entries)]
    if any(row.communication_share for entry in entries for row in entry.rows):
        drawn.append(_communication(entries))
    drawn += [
        _prediction(entry, law)
        for entry in entries
        if (law := fitted[entry.name]) and fits.predictions(entry, law)
    ]
    return drawn


def _mark(row: Row, value: Spread) -> Mark:
    return Mark(row.size, value.median, value.low, value.high, not row.counts)


def _metric(study: Study, entries: Sequence[Series]) -> Picture:
    curves = [
        Curve(entry.name, tuple(_mark(row, row.value) for row in entry.rows)) for entry in entries
    ]
    metric = study.options.metric
    axis = Axis(metric, is_log=True)
    title = f"{'Time' if study.options.is_time else 'Rate'}: {metric}"
    return Picture(chart(title, curves, axis), f"{_BARS} {_HOLLOW} Both axes are logarithmic.")


def _ideal(entries: Sequence[Series], efficiency: float | None = None) -> Curve:
    rows = [row for entry in entries for row in entry.counting]
    base = min(row.size for row in rows)
    marks = []
    for size in sorted({row.size for row in rows}):
        y = efficiency or size / base
        marks.append(Mark(size, y, y, y))
    return Curve("ideal", tuple(marks), is_plain=True)


def _speedup(entries: Sequence[Series], fitted: Mapping[str, Fit | None]) -> Picture:
    curves = [
        Curve(
            entry.name,
            tuple(_mark(row, row.speedup) for row in entry.counting if row.speedup),
        )
        for entry in entries
    ]
    for entry in entries:
        if (law := fitted[entry.name]) is not None:
            points = [(row.size, fits.speedup(law, row.size)[0]) for row in entry.counting]
            marks = tuple(Mark(x, y, y, y) for x, y in points)
            curves.append(Curve(f"{law.law}'s law, {entry.name}", marks, is_plain=True))
    axis = Axis("speed-up", is_log=True)
    svg = chart("Speed-up", [*curves, _ideal(entries)], axis)
    return Picture(svg, f"Against the smallest size. {_BARS}")


def _efficiency(entries: Sequence[Series]) -> Picture:
    curves = [
        Curve(
            entry.name,
            tuple(_mark(row, row.efficiency) for row in entry.counting if row.efficiency),
        )
        for entry in entries
    ]
    axis = Axis("efficiency", least=1.0, write="{:.0%}".format)
    svg = chart("Efficiency", [*curves, _ideal(entries, 1.0)], axis)
    return Picture(svg, f"Speed-up divided by the factor of the ranks. {_BARS}")


def _communication(entries: Sequence[Series]) -> Picture:
    curves = []
    for entry in entries:
        shares = [(row, share) for row in entry.rows if (share := row.communication_share)]
        if shares:
            marks = tuple(Mark(row.size, y, y, y, not row.counts) for row, y in shares)
            curves.append(Curve(entry.name, marks))
    axis = Axis("all-reduce / step", least=0.1, write="{:.0%}".format)
    caption = "An all-reduce of the gradients' size by the time of a step: an upper limit."
    return Picture(chart("Share of communication", curves, axis), f"{caption} {_HOLLOW}")


def _prediction(entry: Series, fitted: Fit) -> Picture:
    predicted = fits.predictions(entry, fitted)
    most = predicted[-1].ranks
    measured = tuple(_mark(row, row.speedup) for row in entry.counting if row.speedup)
    bounded = [(prediction.ranks, prediction.low, prediction.high) for prediction in predicted]
    # Where the band has no upper end, it is drawn up to the ideal.
    band = [
        (float(ranks), low, min(high, ranks / fitted.base))
        for ranks, low, high in bounded
        if low > 0
    ]
    marks = tuple(
        Mark(point.ranks, point.speedup, point.speedup, point.speedup) for point in predicted
    )
    curves = [
        Curve("measured", measured),
        Curve(f"PREDICTION, {fitted.law}", marks, tuple(band)),
        Curve(
            "ideal",
            tuple(
                Mark(x, x / fitted.base, x / fitted.base, x / fitted.base)
                for x in (fitted.base, most)
            ),
            is_plain=True,
        ),
    ]
    svg = chart(f"Prediction: {entry.name}", curves, Axis("speed-up", is_log=True))
    return Picture(svg, "A prediction by the fitted law with its 95 % band, not a measurement.")
