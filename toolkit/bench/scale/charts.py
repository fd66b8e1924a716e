"""Draw charts over the number of ranks as SVG, readable in black and white. Pure.

Each series has a dash and a marker of its own, besides a color that color-blind readers can tell
from the others. Hollow markers are measurements that say nothing of scaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from toolkit.text import one_line

_WIDTH, _HEIGHT = 640, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 20, 44, 62
_LEGEND = 26  # height of a line of the legend
_FONT = 16  # in units of the picture: about 9 px on a phone
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#a3408a", "#7a5c00", "#2f7f9f")
_DASHES = ("", "9 4", "2 4", "9 4 2 4", "5 3", "14 5")
_LONGEST_NAME = 60
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
        band: (x, low, high): an area behind the curve.
        is_plain: a thin line without marks, such as the ideal.
    """

    name: str
    marks: tuple[Mark, ...]
    band: tuple[tuple[float, float, float], ...] = ()
    is_plain: bool = False


def short(value: float) -> str:
    """Format a number for an axis: ``0.25``, ``512``, ``8.19k``, ``1.05M``."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


class Axis(NamedTuple):
    """The y axis of a chart.

    Attributes:
        is_log: powers of 2; else linear from 0.
        least: the least end of a linear axis.
        write: formats a value.
    """

    label: str
    is_log: bool = False
    least: float = 0.0
    write: Callable[[float], str] = short


def escape(text: str, most: int = 2000) -> str:
    """Return foreign text for HTML and SVG: bounded, without characters that reorder or hide."""
    import html

    safe = one_line(text if len(text) <= most else f"{text[:most]}...")
    return html.escape(safe, quote=True)


def chart(
    title: str,
    curves: Sequence[Curve],
    axis: Axis,
    *,
    x_label: str = "ranks",
    is_linear: bool = False,
) -> str:
    """Draw curves over a logarithmic axis of ranks, or over a linear one of numbers from 1."""
    curves = [_drawable(curve, axis) for curve in curves]
    marks = [mark for curve in curves for mark in curve.marks]
    x_values = sorted({mark.x for mark in marks} | {x for curve in curves for x, *_ in curve.band})
    x_values = x_values or [1.0]
    tops = [mark.high for mark in marks] + [high for curve in curves for *_, high in curve.band]
    lows = [mark.low for mark in marks] + [low for curve in curves for _, low, _ in curve.band]
    y_place, y_ticks = _y_axis(axis, lows or [1.0], tops or [1.0])
    # Linear is logarithmic in the powers of two.
    x_of = (lambda value: 2.0 ** (value / x_values[-1])) if is_linear else float
    ends = (x_of(x_values[0]), x_of(x_values[-1]))
    log_place = _log_place(*ends, _LEFT + 12, _WIDTH - _RIGHT - 12)

    def x_place(value: float) -> float:
        return log_place(x_of(value))

    height = _HEIGHT + _LEGEND * len(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="{_FONT}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_WIDTH / 2, 26, title, size=19),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label),
        f'<g transform="rotate(-90 20 {_HEIGHT / 2:g})">{_text(20, _HEIGHT / 2, axis.label)}</g>',
    ]
    for y in y_ticks:
        parts += [
            _rule(_LEFT, y_place(y), _WIDTH - _RIGHT, y_place(y)),
            _text(_LEFT - 8, y_place(y) + 5, axis.write(y), anchor="end"),
        ]
    for x in _thinned(x_values, x_of):
        parts += [
            _rule(x_place(x), _TOP, x_place(x), _HEIGHT - _BOTTOM),
            _text(x_place(x), _HEIGHT - _BOTTOM + 22, short(x)),
        ]
    for number, curve in enumerate(curves):
        parts += _curve(curve, number, x_place, y_place)
        parts += _legend(curve, number)
    return "\n".join([*parts, "</svg>"])


def _drawable(curve: Curve, axis: Axis) -> Curve:
    """Return a curve without values that have no place on the axis."""
    least = 0.0 if axis.is_log else -math.inf

    def fits(*values: float) -> bool:
        return all(math.isfinite(value) and value > least for value in values)

    return curve._replace(
        name=curve.name[:_LONGEST_NAME],
        marks=tuple(
            mark for mark in curve.marks if mark.x > 0 and fits(mark.y, mark.low, mark.high)
        ),
        band=tuple(entry for entry in curve.band if entry[0] > 0 and fits(*entry[1:])),
    )


def _log_place(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = math.log2(high / low) or 1.0
    offset = 0.0 if high > low else 0.5
    return lambda value: start + (end - start) * (math.log2(value / low) / span + offset)


def _y_axis(
    axis: Axis, lows: Sequence[float], tops: Sequence[float]
) -> tuple[Callable[[float], float], list[float]]:
    bottom, top = _HEIGHT - _BOTTOM, _TOP
    if axis.is_log:
        low, high = math.floor(math.log2(min(lows))), math.ceil(math.log2(max(tops)))
        high = max(high, low + 1)
        step = math.ceil((high - low) / _MOST_TICKS)
        place = _log_place(2.0**low, 2.0**high, bottom, top)
        return place, [2.0**power for power in range(low, high + 1, step)]
    most = max(axis.least, *tops)
    unit = _tick_unit(most)
    ends = math.ceil(most / unit - 1e-9) * unit
    return (
        lambda value: bottom + (top - bottom) * value / ends,
        [unit * number for number in range(round(ends / unit) + 1)],
    )


def _tick_unit(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that there are four to nine ticks."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(
        unit for unit in (power / 5, power / 2, power, 2 * power) if most / unit <= _MOST_TICKS
    )


def _thinned(values: Sequence[float], x_of: Callable[[float], float]) -> list[float]:
    """Return some of the values for ticks that would be too close; always the ends."""
    last = math.log2(x_of(values[-1]))
    least = (last - math.log2(x_of(values[0]))) / 14
    taken = [values[0]]
    for value in values[1:-1]:
        place = math.log2(x_of(value))
        if place - math.log2(x_of(taken[-1])) > least and last - place > least:
            taken.append(value)
    return [*taken, values[-1]] if len(values) > 1 else taken


def _curve(
    curve: Curve,
    number: int,
    x_place: Callable[[float], float],
    y_place: Callable[[float], float],
) -> list[str]:
    color, dash = _style(curve, number)
    marks = sorted(curve.marks)
    parts = []
    if len(curve.band) > 1:
        upper = [f"{x_place(x):.1f},{y_place(high):.1f}" for x, _, high in curve.band]
        lower = [f"{x_place(x):.1f},{y_place(low):.1f}" for x, low, _ in reversed(curve.band)]
        parts.append(
            f'<polygon points="{" ".join(upper + lower)}" fill="{color}" fill-opacity="0.15" '
            f'stroke="{color}" stroke-width="0.7" stroke-dasharray="2 3"/>'
        )
    if len(marks) > 1:
        line = " ".join(f"{x_place(mark.x):.1f},{y_place(mark.y):.1f}" for mark in marks)
        width = 1.4 if curve.is_plain else 2.4
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{width}"{dash}/>'
        )
    for mark in marks if not curve.is_plain else ():
        x, y = x_place(mark.x), y_place(mark.y)
        if mark.high > mark.low:
            ends = f'y1="{y_place(mark.low):.1f}" x2="{x:.1f}" y2="{y_place(mark.high):.1f}"'
            parts.append(f'<line x1="{x:.1f}" {ends} stroke="{color}" stroke-width="1.2"/>')
        parts.append(_marker(number, x, y, color, is_hollow=mark.is_hollow))
    return parts


def _style(curve: Curve, number: int) -> tuple[str, str]:
    if curve.is_plain:
        return "#333", f' stroke-dasharray="{1 + 2 * (number % 3)} 4"'
    dash = _DASHES[number % len(_DASHES)]
    return _COLORS[number % len(_COLORS)], f' stroke-dasharray="{dash}"' if dash else ""


def _marker(number: int, x: float, y: float, color: str, *, is_hollow: bool) -> str:
    fill = f'fill="{"white" if is_hollow else color}" stroke="{color}" stroke-width="1.8"'
    r = 6.0
    corners = (
        None,
        ((-r, -r), (r, -r), (r, r), (-r, r)),
        ((0, -1.2 * r), (1.1 * r, r), (-1.1 * r, r)),
        ((0, -1.3 * r), (1.3 * r, 0), (0, 1.3 * r), (-1.3 * r, 0)),
        ((0, 1.2 * r), (1.1 * r, -r), (-1.1 * r, -r)),
        ((-r, -r), (r, r), (r, -r), (-r, r)),
    )[number % 6]
    if corners is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" {fill}/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {fill}/>'


def _legend(curve: Curve, number: int) -> list[str]:
    color, dash = _style(curve, number)
    y = _HEIGHT + _LEGEND * number + 6
    width = 1.4 if curve.is_plain else 2.4
    ends = f'x1="{_LEFT}" y1="{y}" x2="{_LEFT + 48}" y2="{y}"'
    parts = [f'<line {ends} stroke="{color}" stroke-width="{width}"{dash}/>']
    if not curve.is_plain:
        is_hollow = bool(curve.marks) and all(mark.is_hollow for mark in curve.marks)
        parts.append(_marker(number, _LEFT + 24, y, color, is_hollow=is_hollow))
    return [*parts, _text(_LEFT + 60, y + 5, curve.name, anchor="start")]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = _FONT) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"
