"""Amdahl's and Gustafson's laws, fitted to measured points, and what they predict. Pure.

Both are straight lines. Amdahl: the time of a fixed amount of work on n ranks is a + b / n.
Gustafson: the work by second, at a fixed amount of work for each rank, is a + b n. The serial
fraction is a / (a + b) in both. The lines are fitted to the medians by least squares of the
relative errors, so that large and small values count alike; the errors are those of the residuals,
with Student's t for the few points that there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.bench.scale.analysis import Row, Series
from toolkit.bench.scale.spread import t_quantile

LEAST = 4  # sizes from which a law is fitted: two are a line, and the error needs two more
NODES = (8, 16, 32, 64, 128, 256, 512)


class Line(NamedTuple):
    """y = a + b x, fitted with relative weights.

    Attributes:
        covariance: of a and b: variance of a, of b, and their covariance.
        scatter: relative standard deviation of a point from the line.
        freedom: points beyond the two that a line needs.
    """

    a: float
    b: float
    covariance: tuple[float, float, float]
    scatter: float
    freedom: int

    def at(self, x: float) -> tuple[float, float]:
        """Return y at x, and the half width of its 95 % prediction interval."""
        of_a, of_b, of_both = self.covariance
        y = self.a + self.b * x
        variance = of_a + of_b * x * x + 2 * of_both * x + (self.scatter * y) ** 2
        return y, t_quantile(self.freedom) * math.sqrt(max(0.0, variance))


class Fit(NamedTuple):
    """A law fitted to a series.

    Attributes:
        law: ``Amdahl`` or ``Gustafson``.
        serial: the serial fraction.
        error: half width of its 95 % interval.
        base: ranks of the smallest size, for speed-ups.
        sizes: how many sizes were fitted.
    """

    law: str
    serial: float
    error: float
    line: Line
    base: int
    sizes: int


class Prediction(NamedTuple):
    """Speed-up against the smallest measured size, as a 95 % band.

    Attributes:
        high: infinite where the band has no upper end.
    """

    nodes: int
    ranks: int
    speedup: float
    low: float
    high: float

    @property
    def has_end(self) -> bool:
        """Return whether the band is bounded."""
        return math.isfinite(self.high)


def fit_line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Fit a line to points (x, y) with y > 0; None for fewer than three, or for one x."""
    if len(points) < 3 or len({x for x, _ in points}) < 2:
        return None
    weights = [1 / (y * y) for _, y in points]
    total = math.fsum(weights)
    mean_x = math.fsum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = math.fsum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread_x = math.fsum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    both = math.fsum(
        w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)
    )
    b = both / spread_x
    a = mean_y - b * mean_x
    freedom = len(points) - 2
    squares = math.fsum(w * (y - a - b * x) ** 2 for w, (x, y) in zip(weights, points, strict=True))
    variance = squares / freedom
    of_b = variance / spread_x
    return Line(
        a,
        b,
        (variance / total + mean_x * mean_x * of_b, of_b, -mean_x * of_b),
        math.sqrt(variance),
        freedom,
    )


def fit(entry: Series) -> Fit | None:
    """Fit the law of a series' mode; None if it has fewer than four sizes that count."""
    rows = entry.counting
    sizes = len({row.size for row in rows})
    if sizes < LEAST:
        return None
    base = rows[0].rate.median
    is_strong = entry.mode == "strong"
    points = [_point(row, base, is_strong=is_strong) for row in rows]
    line = fit_line(points)
    if line is None or line.a + line.b <= 0:
        return None
    whole = line.a + line.b
    of_a, of_b, of_both = line.covariance
    by_a, by_b = line.b / whole**2, -line.a / whole**2
    variance = by_a**2 * of_a + by_b**2 * of_b + 2 * by_a * by_b * of_both
    error = t_quantile(line.freedom) * math.sqrt(max(0.0, variance))
    law = "Amdahl" if is_strong else "Gustafson"
    return Fit(law, line.a / whole, error, line, rows[0].size, sizes)


def _point(row: Row, base: float, *, is_strong: bool) -> tuple[float, float]:
    relative = row.rate.median / base
    return (1 / row.size, 1 / relative) if is_strong else (float(row.size), relative)


def speedup(fitted: Fit, ranks: float) -> tuple[float, float, float]:
    """Return the speed-up that a law gives for a number of ranks, and its 95 % band."""
    is_strong = fitted.law == "Amdahl"
    y, half = fitted.line.at(1 / ranks if is_strong else ranks)
    if not is_strong:
        return y, max(0.0, y - half), y + half
    middle = 1 / y if y > 0 else math.inf
    return middle, 1 / (y + half) if y + half > 0 else 0.0, 1 / (y - half) if y > half else math.inf


def predictions(entry: Series, fitted: Fit) -> tuple[Prediction, ...]:
    """Return what the law gives for 8 to 512 nodes beyond the largest that was measured."""
    largest = max(entry.counting, key=lambda row: row.point.nodes)
    by_node = largest.size // largest.point.nodes
    return tuple(
        Prediction(nodes, nodes * by_node, *speedup(fitted, nodes * by_node))
        for nodes in NODES
        if nodes > largest.point.nodes
    )


def verdict(fitted: Fit) -> str:
    """Return the fit as a sentence."""
    share = f"{fitted.serial:.1%} ± {fitted.error:.1%} (95 %)"
    text = f"{fitted.law}'s law: serial fraction {share}, from {fitted.sizes} sizes"
    if fitted.serial < -fitted.error:
        return (
            f"{text}; below zero: it gets faster than the ranks explain, and the law does not hold"
        )
    if fitted.error > 0.1:
        return f"{text}; the error is too large to tell much"
    return text
