"""Two studies of one training, compared point by point. Pure.

The test is the one-sided Mann-Whitney test of the runs, at 5 % for each point: of twenty points
that are equal, one may be called slower by chance. A change counts only if the medians differ by a
threshold as well. Three runs against three are the fewest that can show a change; with fewer, the
comparison says that it cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from toolkit.bench.scale.model import Sample, Study
from toolkit.bench.scale.spread import Spread, least_p, p_lower, spread
from toolkit.errors import UsageError

THRESHOLD = 0.05  # of the median
_LEVEL = 0.05 + 1e-9  # of the test: 3 runs against 3 have 1 / 20
_MOST_RUNS = 500  # of a point that are compared

Verdict = Literal["slower", "faster", "no change", "too few runs"]
Key = tuple[str, str, int, int]


class Change(NamedTuple):
    """One point of both studies.

    Attributes:
        key: mode, launcher, nodes and ranks.
        ratio: the new rate by the old one: below 1 is slower, also if the metric is a time.
        p: of the test in the direction of the change.
    """

    key: Key
    old: Spread
    new: Spread
    ratio: float
    p: float
    verdict: Verdict

    @property
    def name(self) -> str:
        """Return the name of the point."""
        return name_of(self.key)


def name_of(key: Key) -> str:
    """Return the name of a point: ``torchrun, weak, 2 x 4`` for two nodes with four ranks each."""
    mode, launcher, nodes, ranks = key
    return f"{launcher}, {mode}, {nodes} x {ranks // nodes}"


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
    before, after = by_key(old), by_key(new)
    common = [key for key in after if key in before]
    if not common:
        raise UsageError(
            "the studies have no point in common",
            place="--against",
            next_step="measure the same nodes, ranks and launcher",
        )
    is_time = new.options.is_time
    return tuple(change(key, before[key], after[key], threshold, is_time=is_time) for key in common)


def by_key(study: Study) -> dict[Key, list[float]]:
    """Return the values of each point by what makes it the same in another study."""
    values: dict[Key, list[float]] = {}
    for point in study.points:
        for sample in study.of(point):
            values.setdefault(_key(point.mode, sample), []).append(sample.value)
    return {key: runs[:_MOST_RUNS] for key, runs in values.items()}


def _key(mode: str, sample: Sample) -> Key:
    return mode, sample.launcher, sample.nodes, sample.size


def change(
    key: Key, old: Sequence[float], new: Sequence[float], threshold: float, *, is_time: bool
) -> Change:
    """Return the change of one point."""
    before = [1 / value for value in old] if is_time else old
    after = [1 / value for value in new] if is_time else new
    ratio = spread(after).median / spread(before).median
    p = p_lower(after, before) if ratio < 1 else p_lower(before, after)
    verdict: Verdict = "no change"
    if least_p(len(new), len(old)) > _LEVEL:
        verdict = "too few runs"
    elif p <= _LEVEL and abs(ratio - 1) > threshold:
        verdict = "slower" if ratio < 1 else "faster"
    return Change(key, spread(old), spread(new), ratio, p, verdict)


def differences(old: Study, new: Study) -> list[str]:
    """Return what else is different: a change may come from it."""
    names = {
        "image_digest": "image",
        "script_sha256": "script",
        "commit": "commit",
        "site": "site",
        "slurm": "Slurm",
        "toolkit": "toolkit",
    }
    notes = []
    for field, name in names.items():
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
