"""Draw a plot as SVG: lines over an axis of powers of two.

Pure; the login node needs no library for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 40, 50
# Color-blind readers can distinguish them, too; in black and white, their dashes differ.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "8 3", "2 3", "8 3 2 3", "4 2", "12 4")


def svg(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Points],
    tick: Callable[[float], str],
) -> str:
    """Draw lines with a point for each value.

    Both axes are logarithmic, because both span several powers of ten.

    Args:
        series: name -> points; values that are not above zero have no place on such an axis and are
            left out.
        tick: how a number of the x axis is written.
    """
    positive = {
        name: [(x, y) for x, y in points if x > 0 and y > 0] for name, points in series.items()
    }
    everything = [point for points in positive.values() for point in points] or [(1.0, 1.0)]
    x_place = _scale([x for x, _ in everything], 2, _LEFT, _WIDTH - _RIGHT)
    y_place = _scale([y for _, y in everything], 10, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, title, anchor="start", size=15),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x_label),
        f'<g transform="rotate(-90 16 {_HEIGHT / 2:g})">{_text(16, _HEIGHT / 2, y_label)}</g>',
    ]
    for y in _decades([y for _, y in everything]):
        parts += [
            _line(_LEFT, y_place(y), _WIDTH - _RIGHT, y_place(y)),
            _text(_LEFT - 6, y_place(y) + 4, f"{y:g}", anchor="end"),
        ]
    for x in sorted({x for x, _ in everything}):
        parts += [
            _line(x_place(x), _TOP, x_place(x), _HEIGHT - _BOTTOM),
            _text(x_place(x), _HEIGHT - _BOTTOM + 18, tick(x), size=10),
        ]
    for number, (name, points) in enumerate(positive.items()):
        parts += _series(name, [(x_place(x), y_place(y)) for x, y in points], number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scale(
    values: Sequence[float], base: int, start: float, end: float
) -> Callable[[float], float]:
    """Return the function from a value to its place between ``start`` and ``end``.

    The ends are the powers of ``base`` around all values.
    """
    low, high = (math.floor(math.log(min(values), base)), math.ceil(math.log(max(values), base)))
    span = max(high - low, 1)
    return lambda value: start + (end - start) * (math.log(value, base) - low) / span


def _decades(values: Sequence[float]) -> list[float]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _series(name: str, places: Points, number: int) -> list[str]:
    color, dash = _COLORS[number % len(_COLORS)], _DASHES[number % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    y = _TOP + 16 * number
    return [
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{dashed}/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places),
        f'<line x1="{_WIDTH - _RIGHT + 10}" y1="{y}" x2="{_WIDTH - _RIGHT + 34}" y2="{y}" '
        f'stroke="{color}" stroke-width="2"{dashed}/>',
        _text(_WIDTH - _RIGHT + 40, y + 4, name, anchor="start"),
    ]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"
