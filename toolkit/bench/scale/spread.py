"""Medians, spreads and tests of few measurements, by the standard library alone. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

_MOST_SPLITS = 50_000  # up to so many the permutations are counted one by one


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


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1; equal values share the mean of their ranks."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    last = {value: place for place, value in enumerate(order)}
    return [(first[value] + last[value]) / 2 + 1 for value in values]


def least_p(first: int, second: int) -> float:
    """Return the least p that two samples of these sizes can have in the one-sided test."""
    return 1 / math.comb(first + second, first)


def p_lower(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the one-sided p of the Mann-Whitney test that ``new`` is lower than ``old``.

    Small samples: exact, by all splits of the pooled ranks. Large ones: by the normal distribution
    with the correction for equal values and for continuity.
    """
    ranks = ranks_of([*new, *old])
    total = sum(ranks[: len(new)])
    if math.comb(len(ranks), len(new)) <= _MOST_SPLITS:
        sums = [sum(split) for split in combinations(ranks, len(new))]
        return sum(value <= total + 1e-9 for value in sums) / len(sums)
    count, expected = len(ranks), len(new) * (len(ranks) + 1) / 2
    ties = sum(n**3 - n for n in (ranks.count(rank) for rank in set(ranks)))
    variance = len(new) * len(old) / 12 * ((count + 1) - ties / (count * (count - 1)))
    if variance <= 0:
        return 1.0
    return statistics.NormalDist().cdf((total - expected + 0.5) / math.sqrt(variance))
