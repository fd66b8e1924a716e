"""Charts as SVG, readable in black and white. Pure.

Each curve has a dash and a marker of its own, besides a color that color-blind readers can tell
from the others. Hollow markers are measurements that do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_WIDTH, _HEIGHT = 640, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 32, 44, 62
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#a3408a", "#7a5c00", "#2f7f9f")
_DASHES = ("", "9 4", "2 4", "9 4 2 4", "5 3", "14 5")
_MARKERS = (
    "M-6 0A6 6 0 1 0 6 0A6 6 0 1 0 -6 0Z",
    "M-6 -6H6V6H-6Z",
    "M0 -7L7 6H-7Z",
    "M0 -8L8 0L0 8L-8 0Z",
    "M0 7L7 -6H-7Z",
    "M-6 -6L6 6V-6L-6 6Z",
)
_MOST_TICKS = 9


class Mark(NamedTuple):
    """A measured value, with its lowest and highest run."""

    x: float
    y: float
    low: float
    high: float
    is_hollow: bool = False


class Curve(NamedTuple):
    """A series of a chart.

    Attributes:
        is_plain: a thin line without marks, such as the ideal.
    """

    name: str
    marks: tuple[Mark, ...]
    is_plain: bool = False


def short(value: float) -> str:
    """Format a number for an axis: ``0.25``, ``512``, ``8.19k``, ``1.05M``."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


class Axis(NamedTuple):
    """An axis of a chart.

    Attributes:
        is_log: powers of 2; else linear from 0.
        least: the least end of a linear axis.
        write: formats a value.
    """

    label: str
    is_log: bool = True
    least: float = 0.0
    write: Callable[[float], str] = short


# The place of a value on an axis, and the values that have a tick.
Scale = tuple[Callable[[float], float], list[float]]


def chart(title: str, curves: Sequence[Curve], x_axis: Axis, y_axis: Axis) -> dict[str, object]:
    """Return what the template of a chart draws: curves with their places in the picture.

    All values are finite, and those of a logarithmic axis are above zero.
    """
    marks = [sorted(curve.marks) for curve in curves]
    xs = [mark.x for own in marks for mark in own] or [1.0]
    ys = [y for own in marks for mark in own for y in (mark.low, mark.high)] or [1.0]
    x, x_ticks = _scale(x_axis, xs, _LEFT, _WIDTH - _RIGHT)
    y, y_ticks = _scale(y_axis, ys, _HEIGHT - _BOTTOM, _TOP)
    return {
        "title": title,
        "labels": (x_axis.label, y_axis.label),
        "box": (_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, _WIDTH, _HEIGHT),
        "x_ticks": [(x(value), x_axis.write(value)) for value in x_ticks],
        "y_ticks": [(y(value), y_axis.write(value)) for value in y_ticks],
        "curves": [
            {
                "name": curve.name,
                "is_plain": curve.is_plain,
                "color": "#333" if curve.is_plain else _COLORS[number % len(_COLORS)],
                "dash": f"{1 + 2 * (number % 3)} 4"
                if curve.is_plain
                else _DASHES[number % len(_DASHES)],
                "marker": _MARKERS[number % len(_MARKERS)],
                "marks": [
                    Mark(
                        x(mark.x),
                        y(mark.y),
                        y(mark.low),
                        y(mark.high),
                        mark.is_hollow,
                    )
                    for mark in own
                ],
            }
            for number, (curve, own) in enumerate(zip(curves, marks, strict=True))
        ],
    }


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    if axis.is_log:
        low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
        high = max(high, low + 1)
        step = math.ceil((high - low) / _MOST_TICKS)
        span = (end - start) / (high - low)
        return (
            lambda value: start + span * (math.log2(value) - low),
            [2.0**power for power in range(low, high + 1, step)],
        )
    most = max(axis.least, *values)
    unit = _tick_unit(most)
    count = max(1, math.ceil(most / unit - 1e-9))
    return (
        lambda value: start + (end - start) * value / (count * unit),
        [unit * number for number in range(count + 1)],
    )


def _tick_unit(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that there are four to nine ticks."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(
        unit for unit in (power / 5, power / 2, power, 2 * power) if most / unit <= _MOST_TICKS
    )
