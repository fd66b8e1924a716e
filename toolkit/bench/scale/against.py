"""Two studies of one training, compared point by point. Pure.

The test is the one-sided Mann-Whitney test of the runs, at 5 % for each point: of twenty points
that are equal, one may be called slower by chance. A change counts only if the medians differ by a
threshold as well. Three runs against three are the fewest that can show a change; with fewer, the
comparison says that it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from toolkit.bench.scale.model import Study
from toolkit.bench.scale.statistics import Spread, p_lower, spread
from toolkit.errors import UsageError

THRESHOLD = 0.05  # of the median
_LEVEL = 0.05 + 1e-9  # of the test: 3 runs against 3 have 1 / 20
_MOST_RUNS = 500  # of a point that are compared
_ORIGIN = {
    "image_digest": "image",
    "script_sha256": "script",
    "commit": "commit",
    "site": "site",
    "slurm": "Slurm",
    "toolkit": "toolkit",
}

Verdict = Literal["slower", "faster", "no change", "too few runs"]


class Change(NamedTuple):
    """One point of both studies.

    Attributes:
        name: such as ``torchrun, weak, 2 x 4`` for two nodes with four ranks each.
        ratio: the new rate by the old one: below 1 is slower, also if the metric is a time.
        p: of the test in the direction of the change.
    """

    name: str
    old: Spread
    new: Spread
    ratio: float
    p: float
    verdict: Verdict


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
    is_time = new.options.is_time
    return tuple(
        change(name, before[name], after[name], threshold, is_time=is_time) for name in common
    )


def _by_name(study: Study) -> dict[str, list[float]]:
    """Return the values of each point by what makes it the same in another study."""
    values: dict[str, list[float]] = {}
    for point in study.points:
        for sample in study.of(point):
            shape = f"{sample.nodes} x {sample.ranks_per_node}"
            name = f"{sample.launcher}, {point.mode}, {shape}"
            values.setdefault(name, []).append(sample.value)
    return {name: runs[:_MOST_RUNS] for name, runs in values.items()}


def change(
    name: str, old: Sequence[float], new: Sequence[float], threshold: float, *, is_time: bool
) -> Change:
    """Return the change of one point."""
    before = [1 / value for value in old] if is_time else old
    after = [1 / value for value in new] if is_time else new
    ratio = spread(after).median / spread(before).median
    p = p_lower(after, before) if ratio < 1 else p_lower(before, after)
    verdict: Verdict = "no change"
    if 1 / math.comb(len(new) + len(old), len(new)) > _LEVEL:  # the least that p can be
        verdict = "too few runs"
    elif p <= _LEVEL and abs(ratio - 1) > threshold:
        verdict = "slower" if ratio < 1 else "faster"
    return Change(name, spread(old), spread(new), ratio, p, verdict)


def differences(old: Study, new: Study) -> list[str]:
    """Return what else is different: a change may come from it."""
    notes = []
    for field, name in _ORIGIN.items():
        before, after = getattr(old.origin, field), getattr(new.origin, field)
        if before != after:
            notes.append(f"{name}: {before[:40] or 'unknown'} -> {after[:40] or 'unknown'}")
    if old.options.arguments != new.options.arguments or old.options.job != new.options.job:
        notes.append("the options of the job")
    return notes


def table(changes: Sequence[Change]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the comparison as header and rows."""
    header = ("point", "before", "now", "change", "p", "verdict")
    return header, [
        (
            entry.name,
            f"{entry.old.median:.5g} ({entry.old.runs})",
            f"{entry.new.median:.5g} ({entry.new.runs})",
            f"{entry.ratio - 1:+.1%}",
            f"{entry.p:.3f}",
            entry.verdict,
        )
        for entry in changes
    ]
