"""Amdahl's and Gustafson's laws, fitted to measured points. Pure.

Both are straight lines. Amdahl: the time of a fixed amount of work on n ranks is a + b / n.
Gustafson: the work by second, at a fixed amount of work for each rank, is a + b n. The serial
fraction is a / (a + b) in both. The lines are fitted to the medians by least squares of the
relative errors, so that large and small values count alike. How well a fraction is known shows in
those that are found without one of the points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.bench.scale.analysis import Row, Series

LEAST = 4  # sizes from which a law is fitted: two are a line, and without one there must be three


class Fit(NamedTuple):
    """A law fitted to a series.

    Attributes:
        law: ``Amdahl`` or ``Gustafson``.
        serial: the serial fraction.
        low: the least that is found without one of the points; high: the most.
        line: a and b.
        sizes: how many sizes were fitted.
    """

    law: str
    serial: float
    low: float
    high: float
    line: tuple[float, float]
    sizes: int


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b of the line through points (x, y) with y > 0; of two x at least."""
    weights = [1 / (y * y) for _, y in points]
    total = math.fsum(weights)
    mean_x = math.fsum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = math.fsum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = math.fsum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    both = math.fsum(
        w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)
    )
    return mean_y - both / spread * mean_x, both / spread


def fit(entry: Series) -> Fit | None:
    """Fit the law of a series' mode; None if it has fewer than four sizes that count."""
    rows = entry.counting
    sizes = len({row.size for row in rows})
    if sizes < LEAST:
        return None
    is_strong = entry.mode == "strong"
    points = [_point(row, rows[0].rate.median, is_strong=is_strong) for row in rows]
    without = [points[:number] + points[number + 1 :] for number in range(len(points))]
    lines = [fit_line(own) for own in (points, *without)]
    if any(a + b <= 0 for a, b in lines):
        return None
    serial, *others = (a / (a + b) for a, b in lines)
    law = "Amdahl" if is_strong else "Gustafson"
    return Fit(law, serial, min(others), max(others), lines[0], sizes)


def _point(row: Row, base: float, *, is_strong: bool) -> tuple[float, float]:
    relative = row.rate.median / base
    return (1 / row.size, 1 / relative) if is_strong else (float(row.size), relative)


def speedup(fitted: Fit, ranks: float) -> float:
    """Return the speed-up that a law gives for a number of ranks."""
    a, b = fitted.line
    if fitted.law == "Gustafson":
        return a + b * ranks
    time = a + b / ranks
    return 1 / time if time > 0 else math.inf


def verdict(fitted: Fit) -> str:
    """Return the fit as a sentence."""
    text = (
        f"{fitted.law}'s law: serial fraction {fitted.serial:.1%} ({fitted.low:.1%} to "
        f"{fitted.high:.1%} without one of the points), from {fitted.sizes} sizes"
    )
    if fitted.high < 0:
        return (
            f"{text}; below zero: it gets faster than the ranks explain, and the law does not hold"
        )
    if fitted.high - fitted.low > 0.2:
        return f"{text}; the range is too wide to tell much"
    return text
