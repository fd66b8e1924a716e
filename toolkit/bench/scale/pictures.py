"""The charts of a study: metric, speed-up, efficiency, communication. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from toolkit.bench.scale import fits
from toolkit.bench.scale.analysis import Row, Series
from toolkit.bench.scale.fits import Fit
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.spread import Spread
from toolkit.reports.charts import Axis, Curve, Mark, chart

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
