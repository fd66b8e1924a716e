"""The warm-up and the spread of few measurements, and two studies compared point by point. Pure.

Warm-up is found by MSER, the marginal standard error rule (K. P. White, "An Effective Truncation
Heuristic for Bias Reduction in Simulation Output", Simulation 69(6), 1997): of all beginnings that
could be dropped, it drops the one after which the mean of the rest is known best, that is where the
sum of squared deviations of the rest, by the square of its length, is least. At most half of a
series is dropped.

A point has changed if all of its runs are on one side of all earlier ones, and the medians differ
by a threshold. For three runs against three that is the one-sided Mann-Whitney test at 5 %: of
twenty points that are equal, one may be called slower by chance. These are the fewest that can show
a change; with fewer, the comparison says that it cannot tell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.bench.scale.model import Study
from toolkit.errors import UsageError

LEAST_VALUES = 5  # of a series from which a warm-up can be detected
THRESHOLD = 0.05  # of the median
_LEAST_RUNS = 3
_COMPARED = ("image digest", "script SHA-256", "commit", "site", "Slurm", "toolkit")


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


class Change(NamedTuple):
    """One point of both studies.

    Attributes:
        name: such as ``torchrun, weak, 2 x 4`` for two nodes with four ranks each.
        ratio: the new rate by the old one: below 1 is slower, also if the metric is a time.
        verdict: ``slower``, ``faster``, ``no change`` or ``too few runs``.
    """

    name: str
    old: Spread
    new: Spread
    ratio: float
    verdict: str


def compare(old: Study, new: Study, threshold: float = THRESHOLD) -> tuple[Change, ...]:
    """Return all points that both studies have.

    Raises:
        UsageError: they have different metrics, or no point in common.
    """
    if old.options.metric != new.options.metric:
        raise UsageError(
            f"the studies measured {old.options.metric!r} and {new.options.metric!r}",
            place="--against",
            next_step="compare studies of one metric",
        )
    before, after = _by_name(old), _by_name(new)
    common = [name for name in after if name in before]
    if not common:
        raise UsageError(
            "the studies have no point in common",
            place="--against",
            next_step="measure the same nodes, ranks and launcher",
        )
    return tuple(
        change(name, before[name], after[name], threshold, is_time=new.options.is_time)
        for name in common
    )


def _by_name(study: Study) -> dict[str, list[float]]:
    """Return the values of each point by what makes it the same in another study."""
    values: dict[str, list[float]] = {}
    for point in study.points:
        for sample in study.of(point):
            shape = f"{sample.nodes} x {sample.ranks_per_node}"
            name = f"{sample.launcher}, {point.mode}, {shape}"
            values.setdefault(name, []).append(sample.value)
    return values


def change(
    name: str, old: Sequence[float], new: Sequence[float], threshold: float, *, is_time: bool
) -> Change:
    """Return the change of one point."""
    before, after = (spread([1 / value for value in own] if is_time else own) for own in (old, new))
    ratio, verdict = after.median / before.median, "no change"
    if min(len(old), len(new)) < _LEAST_RUNS:
        verdict = "too few runs"
    elif not before.overlaps(after) and abs(ratio - 1) > threshold:
        verdict = "slower" if ratio < 1 else "faster"
    return Change(name, spread(old), spread(new), ratio, verdict)


def differences(old: Study, new: Study) -> list[str]:
    """Return what else is different: a change may come from it."""
    notes = [
        f"{name}: {before[:40] or 'unknown'} -> {after[:40] or 'unknown'}"
        for name in _COMPARED
        if (before := old.origin.get(name, "")) != (after := new.origin.get(name, ""))
    ]
    if (old.options.arguments, old.options.job) != (new.options.arguments, new.options.job):
        notes.append("the options of the job")
    return notes


def table(changes: Sequence[Change]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the comparison as header and rows."""
    header = ("point", "before", "now", "change", "verdict")
    return header, [
        (
            entry.name,
            f"{entry.old.median:.5g} ({entry.old.runs})",
            f"{entry.new.median:.5g} ({entry.new.runs})",
            f"{entry.ratio - 1:+.1%}",
            entry.verdict,
        )
        for entry in changes
    ]
