"""Warm-up and steady state of a series of measurements. Pure.

The method is MSER, the marginal standard error rule (K. P. White, "An Effective Truncation
Heuristic for Bias Reduction in Simulation Output", Simulation 69(6), 1997): of all beginnings that
could be dropped, it drops the one after which the mean of the rest is known best, that is where the
sum of squared deviations of the rest, by the square of its length, is least. At most half of a
series is dropped.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LEAST = 5  # values of a series from which a warm-up can be detected
_MOST = 100_000  # values that are read of one run
_LONGEST = 10_000  # characters of a line that can hold a value
_NUMBER = r"(?P<value>[+-]?\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,3})?)"


class Steady(NamedTuple):
    """The steady state of a series.

    Attributes:
        value: the median after the warm-up.
        values: of the whole series.
        warm_up: how many at the beginning were dropped.
    """

    value: float
    values: int
    warm_up: int


def warm_up(values: Sequence[float]) -> int:
    """Return how many values at the beginning belong to the warm-up, by MSER.

    Of fewer than five values none is dropped: that few cannot show a warm-up.
    """
    count = len(values)
    if count < LEAST:
        return 0
    # Sums from the end, relative to one of the values so that large numbers lose no digits.
    origin, total, squares = values[-1], 0.0, 0.0
    best, dropped = math.inf, 0
    for start in range(count - 1, -1, -1):
        value = values[start] - origin
        total, squares = total + value, squares + value * value
        rest = count - start
        if start > count // 2:
            continue
        deviation = max(0.0, squares - total * total / rest)
        if deviation / rest**2 <= best * (1 + 1e-12):  # of equals the longer rest
            best, dropped = deviation / rest**2, start
    return dropped


def steady(values: Sequence[float]) -> Steady:
    """Return the steady state of a series that is not empty."""
    dropped = warm_up(values)
    return Steady(statistics.median(values[dropped:]), len(values), dropped)


def printed_values(lines: Iterable[str], metric: str) -> list[float]:
    """Return the values of a metric in the lines that a rank printed.

    A line is a JSON object with the metric as a key, or has it as text: ``metric 12.5``,
    ``metric=12.5``, ``metric: 12.5``.
    """
    pattern = re.compile(rf"(?<![\w.-]){re.escape(metric)}[\"']?[ :=]{{1,3}}{_NUMBER}(?![\w.])")
    values: list[float] = []
    for line in lines:
        if metric not in line or len(line) > _LONGEST or len(values) >= _MOST:
            continue
        if (value := _value(line, metric, pattern)) is not None and math.isfinite(value):
            values.append(value)
    return values


def number_of(data: object, key: str) -> float | None:
    """Return a finite number of a parsed JSON object; None if there is none under this key."""
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _value(line: str, metric: str, pattern: re.Pattern[str]) -> float | None:
    text = line.strip()
    if text.startswith("{"):
        try:
            return number_of(json.loads(text), metric)
        except (ValueError, RecursionError):
            return None
    match = pattern.search(text)
    return float(match["value"]) if match else None


def metric_of(printed: Sequence[float], result: float | None) -> Steady | None:
    """Return the metric of a run in its steady state; None if it was not printed.

    Args:
        printed: all printed values, in their order.
        result: the value in the result of the script. If there are others, it is left out: it is
            their mean, with the warm-up in it.
    """
    series = list(printed)
    if len(series) > 1 and result is not None and series[-1] == result:
        series.pop()
    if not series:
        return None if result is None else Steady(result, 1, 0)
    return steady(series)
