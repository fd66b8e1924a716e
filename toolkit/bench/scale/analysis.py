"""From measurements to rows: medians with their spread, speed-up, efficiency, hours. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from toolkit.bench.scale.model import Communication, Mode, Point, Sample, Straggler, Study
from toolkit.bench.scale.spread import Spread, spread
from toolkit.units import counted

_UNKNOWN_CORES = (
    "the cores of the nodes are not recorded, so that more ranks than cores would not be noticed"
)


class Row(NamedTuple):
    """One point of a study, measured.

    Attributes:
        launcher: that started the ranks.
        size: number of ranks.
        value: the metric.
        rate: work by second: the metric, or its inverse if it is a time.
        speedup: by the smallest size of the same mode and launcher.
        efficiency: the speed-up by the factor of the ranks.
        oversubscribed: more ranks than cores or GPUs: it says nothing of scaling.
        counts: the point counts for speed-up and fits.
        unit_hours: hours of all GPUs or cores for an epoch; None: unknown.
        communication_share: of a step, an all-reduce of the gradients; None: unknown, also if it
            took longer than a step.
        start_seconds, warm_up_seconds, step_seconds: medians; 0: unknown.
        warm_up: values of the metric that were dropped, the most of a run.
    """

    point: Point
    launcher: str
    size: int
    value: Spread
    rate: Spread
    speedup: Spread | None
    efficiency: Spread | None
    oversubscribed: bool
    counts: bool
    units: tuple[int, str]
    unit_hours: float | None
    communication: Communication
    communication_share: float | None
    start_seconds: float
    warm_up_seconds: float
    step_seconds: float
    values: int
    warm_up: int
    straggler: Straggler | None
    runs: tuple[str, ...]


class Series(NamedTuple):
    """All points of one mode and launcher, the smallest first."""

    mode: Mode
    launcher: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Return the name for a legend."""
        return f"{self.launcher}, {self.mode}"

    @property
    def counting(self) -> tuple[Row, ...]:
        """Return the rows that say something of scaling."""
        return tuple(row for row in self.rows if row.counts)


def series(study: Study) -> tuple[Series, ...]:
    """Return the measured points of a study by mode and launcher."""
    measured = [(point, study.of(point)) for point in study.points]
    groups: dict[tuple[Mode, str], list[tuple[Point, tuple[Sample, ...]]]] = {}
    for point, samples in measured:
        if samples:
            groups.setdefault((point.mode, samples[0].launcher), []).append((point, samples))
    return tuple(
        Series(mode, launcher, _rows(study, sorted(entries, key=_order)))
        for (mode, launcher), entries in groups.items()
    )


def _order(entry: tuple[Point, tuple[Sample, ...]]) -> tuple[int, int]:
    sample = entry[1][0]
    return sample.size, sample.nodes


def _rows(study: Study, measured: Sequence[tuple[Point, tuple[Sample, ...]]]) -> tuple[Row, ...]:
    rows = [_row(study, point, samples) for point, samples in measured]
    base = next((row for row in rows if row.counts), None)
    return tuple(_scaled(row, base) for row in rows)


def _row(study: Study, point: Point, samples: Sequence[Sample]) -> Row:
    first, values = samples[0], [sample.value for sample in samples]
    rates = [1 / value for value in values] if study.options.is_time else values
    oversubscribed = any(sample.oversubscribed for sample in samples)
    epochs = _known(sample.epoch_seconds for sample in samples)
    communication = _communication(samples)
    step = _known(sample.step_seconds for sample in samples)
    return Row(
        point=point,
        launcher=first.launcher,
        size=first.size,
        value=spread(values),
        rate=spread(rates),
        speedup=None,
        efficiency=None,
        oversubscribed=oversubscribed,
        counts=not oversubscribed or bool(study.options.count_oversubscribed),
        units=first.units,
        unit_hours=epochs * first.units[0] / 3600 if epochs else None,
        communication=communication,
        communication_share=communication.seconds / step
        if 0 < communication.seconds < step
        else None,
        start_seconds=_known(sample.start_seconds for sample in samples),
        warm_up_seconds=_known(sample.warm_up_seconds for sample in samples),
        step_seconds=step,
        values=max(sample.values for sample in samples),
        warm_up=max(sample.warm_up for sample in samples),
        straggler=_straggler(samples),
        runs=tuple(sample.name for sample in samples),
    )


def _known(values: Iterable[float]) -> float:
    """Return the median of the values that are known, which are not 0."""
    known = [value for value in values if value]
    return statistics.median(known) if known else 0.0


def _communication(samples: Sequence[Sample]) -> Communication:
    measured = [sample.communication for sample in samples if sample.communication.seconds]
    middle = sorted(measured, key=lambda entry: entry.seconds)[len(measured) // 2 :]
    return middle[0] if middle else samples[0].communication


def _straggler(samples: Sequence[Sample]) -> Straggler | None:
    """Return the straggler of most runs; one that is slow once may have been unlucky."""
    stragglers = [sample.straggler for sample in samples if sample.straggler]
    ranks = [straggler.ranks for straggler in stragglers]
    if not ranks or ranks.count(statistics.mode(ranks)) * 2 <= len(samples):
        return None
    return next(entry for entry in stragglers if entry.ranks == statistics.mode(ranks))


def _scaled(row: Row, base: Row | None) -> Row:
    """Return the row with its speed-up and efficiency, if it and a smaller one count."""
    if base is None or not row.counts:
        return row
    speedup = row.rate.scaled(1 / base.rate.median)
    return row._replace(speedup=speedup, efficiency=speedup.scaled(base.size / row.size))


def remarks(entry: Series, study: Study) -> list[str]:
    """Return what the numbers of a series do not show, or must not be read as."""
    return [
        *_oversubscription(entry, study),
        *_differences(entry),
        *_slow_sums(entry),
        *_stragglers(entry),
        *_warm_up(entry),
        *_whole_runs(entry),
    ]


def _oversubscription(entry: Series, study: Study) -> list[str]:
    shapes = [_shape(row) for row in entry.rows if row.oversubscribed]
    if not shapes:
        is_known = all(sample.cores for sample in study.samples)
        return [] if is_known else [_UNKNOWN_CORES]
    cause = f"{', '.join(shapes)}: oversubscribed, more ranks than cores or GPUs"
    reason = study.options.count_oversubscribed
    if reason:
        return [f"{cause}; counted all the same, because: {reason}"]
    return [f"{cause}; this says nothing of scaling"]


def _differences(entry: Series) -> list[str]:
    single = [_shape(row) for row in entry.counting if row.value.runs < 2]
    notes = [
        f"{_shape(before)} and {_shape(after)}: the difference is within the spread of the runs"
        for before, after in pairwise(entry.counting)
        if min(before.value.runs, after.value.runs) > 1 and before.value.overlaps(after.value)
    ]
    if single:
        notes.append(
            f"{', '.join(single)}: one run does not show the spread; measure with --runs 3"
        )
    return notes


def _slow_sums(entry: Series) -> list[str]:
    """Return a note for each point at which the all-reduce took longer than a step that has one."""
    return [
        f"{_shape(row)}: an all-reduce alone took {row.communication.seconds * 1000:.3g} ms, and a "
        f"whole step {row.step_seconds * 1000:.3g} ms: the share of communication is not known; "
        "the machines or the network were busier at the end of the run"
        for row in entry.rows
        if row.step_seconds and row.communication.seconds >= row.step_seconds
    ]


def _warm_up(entry: Series) -> list[str]:
    """Return a note on the values that were dropped as warm-up."""
    row = max(entry.rows, key=lambda row: row.warm_up / row.values)
    if not row.warm_up:
        return []
    share = f"{row.warm_up} of {row.values} printed values"
    return [f"up to {share} of a run were dropped as warm-up ({_shape(row)})"]


def _stragglers(entry: Series) -> list[str]:
    notes = []
    for row in entry.rows:
        slow = row.straggler
        if slow is None:
            continue
        numbers = ", ".join(map(str, slow.ranks[:20]))
        noun = "rank" if len(slow.ranks) == 1 else "ranks"
        verb = "does" if len(slow.ranks) == 1 else "do"
        notes.append(
            f"{_shape(row)}: straggler {noun} {numbers} on {', '.join(slow.hosts[:20])}: {verb} "
            f"{slow.busy_seconds * 1000:.3g} ms of its own work in each step, the others "
            f"{slow.others_seconds * 1000:.3g} ms, and they wait"
        )
    return notes


def _whole_runs(entry: Series) -> list[str]:
    """Return a note for values that the script prints once, with its warm-up in them."""
    once = [row for row in entry.rows if row.values == 1]
    if not once:
        return []
    slowest = max(once, key=lambda row: row.warm_up_seconds)
    bias = (
        f"; the first steps took up to {slowest.warm_up_seconds:.2g} s longer than later ones "
        f"({_shape(slowest)})"
        if slowest.warm_up_seconds
        else ""
    )
    return [f"the script prints one value for a whole run, which may include its warm-up{bias}"]


def _shape(row: Row) -> str:
    return f"{counted(row.point.nodes, 'node')} x {counted(row.size // row.point.nodes, 'rank')}"
