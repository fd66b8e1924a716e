"""Warm-up, spread, comparison and laws of few measurements, by the standard library alone. Pure.

Warm-up is found by MSER, the marginal standard error rule (K. P. White, "An Effective Truncation
Heuristic for Bias Reduction in Simulation Output", Simulation 69(6), 1997): of all beginnings that
could be dropped, it drops the one after which the mean of the rest is known best, that is where the
sum of squared deviations of the rest, by the square of its length, is least. At most half of a
series is dropped.

Amdahl's and Gustafson's laws are straight lines. Amdahl: the time of a fixed amount of work on n
ranks is a + b / n. Gustafson: the work by second, at a fixed amount of work for each rank, is
a + b n. The serial fraction is a / (a + b) in both. The lines are fitted to the medians by least
squares of the relative errors, so that large and small values count alike. How well a fraction is
known shows in those that are found without one of the points.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

LEAST_VALUES = 5  # of a series from which a warm-up can be detected
LEAST_SIZES = 4  # for a law: two are a line, and without one there must be three
_MOST_SPLITS = 50_000  # up to so many the permutations are counted one by one


def warm_up(values: Sequence[float]) -> int:
    """Return how many values at the beginning belong to the warm-up, by MSER.

    Of fewer than five values none is dropped: that few cannot show a warm-up.
    """
    count = len(values)
    if count < LEAST_VALUES:
        return 0
    # Sums from the end, relative to one of the values so that large numbers lose no digits.
    origin, total, squares = values[-1], 0.0, 0.0
    best, dropped = math.inf, 0
    for start in range(count - 1, -1, -1):
        value = values[start] - origin
        total, squares = total + value, squares + value * value
        rest = count - start
        deviation = max(0.0, squares - total * total / rest) / rest**2
        # Of equals the longer rest.
        if start <= count // 2 and deviation <= best * (1 + 1e-12):
            best, dropped = deviation, start
    return dropped


class Spread(NamedTuple):
    """A median with the lowest and the highest of its runs."""

    median: float
    low: float
    high: float
    runs: int

    def overlaps(self, other: Spread) -> bool:
        """Return whether the ranges of two spreads have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def scaled(self, factor: float) -> Spread:
        """Return the spread of the values times a positive factor."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.runs)


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the range of some values, at least one."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def p_lower(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the one-sided p of the Mann-Whitney test that ``new`` is lower than ``old``.

    Small samples: exact, by all splits of the pooled ranks. Large ones: by the normal distribution
    with the correction for equal values and for continuity. Equal values share the mean of their
    ranks.
    """
    order = sorted((*new, *old))
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    last = {value: place for place, value in enumerate(order)}
    ranks = [(first[value] + last[value]) / 2 + 1 for value in (*new, *old)]
    total, count = sum(ranks[: len(new)]), len(ranks)
    if math.comb(count, len(new)) <= _MOST_SPLITS:
        sums = [sum(split) for split in combinations(ranks, len(new))]
        return sum(value <= total + 1e-9 for value in sums) / len(sums)
    ties = sum(n**3 - n for n in (ranks.count(rank) for rank in set(ranks)))
    variance = len(new) * len(old) / 12 * ((count + 1) - ties / (count * (count - 1)))
    if variance <= 0:
        return 1.0
    expected = len(new) * (count + 1) / 2
    return statistics.NormalDist().cdf((total - expected + 0.5) / math.sqrt(variance))


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

    def speedup(self, ranks: float) -> float:
        """Return the speed-up that the law gives for a number of ranks."""
        a, b = self.line
        if self.law == "Gustafson":
            return a + b * ranks
        time = a + b / ranks
        return 1 / time if time > 0 else math.inf

    def __str__(self) -> str:
        text = (
            f"{self.law}'s law: serial fraction {self.serial:.1%} ({self.low:.1%} to "
            f"{self.high:.1%} without one of the points), from {self.sizes} sizes"
        )
        if self.high < 0:
            why = "it gets faster than the ranks explain, and the law does not hold"
            return f"{text}; below zero: {why}"
        if self.high - self.low > 0.2:
            return f"{text}; the range is too wide to tell much"
        return text


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b of the line through points (x, y) with y > 0; of two x at least."""
    weighed = [(1 / (y * y), x, y) for x, y in points]
    total = math.fsum(weight for weight, _, _ in weighed)
    mean_x = math.fsum(weight * x for weight, x, _ in weighed) / total
    mean_y = math.fsum(weight * y for weight, _, y in weighed) / total
    both = math.fsum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in weighed)
    slope = both / math.fsum(weight * (x - mean_x) ** 2 for weight, x, _ in weighed)
    return mean_y - slope * mean_x, slope


def fit(mode: str, rates: Sequence[tuple[int, float]]) -> Fit | None:
    """Fit the law of a mode to numbers of ranks and rates; None if these are too few sizes."""
    sizes = len({size for size, _ in rates})
    if sizes < LEAST_SIZES:
        return None
    is_strong, base = mode == "strong", rates[0][1]
    points = [
        (1 / size, base / rate) if is_strong else (float(size), rate / base) for size, rate in rates
    ]
    without = [points[:number] + points[number + 1 :] for number in range(len(points))]
    lines = [fit_line(own) for own in (points, *without)]
    if any(a + b <= 0 for a, b in lines):
        return None
    serial, *others = (a / (a + b) for a, b in lines)
    law = "Amdahl" if is_strong else "Gustafson"
    return Fit(law, serial, min(others), max(others), lines[0], sizes)
