"""The measurement of one run, from its results, its lines and the files of its ranks. Pure."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from toolkit.bench.scale.model import Communication, Options, Point, RankTimes, Sample, Straggler
from toolkit.bench.scale.statistics import warm_up
from toolkit.errors import MalformedInputError
from toolkit.model.base import Stored
from toolkit.model.run import Plan
from toolkit.runs.logs import Line

_MOST = 100_000  # values that are read of one run
_LONGEST = 10_000  # characters of a line that can hold a value
_NUMBER = r"(?P<value>[+-]?\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,3})?)"
# A rank is a straggler if its own work in a step takes by so much longer than that of most ranks,
_FACTOR = 1.25
# by so much of the whole step, and by so many deviations.
_SHARE, _DEVIATIONS = 0.1, 5.0


class RankFile(Stored, frozen=True, kw_only=True):
    """Steps of one rank, as the module in it has recorded them.

    Attributes:
        began: start of the process, in seconds since the epoch.
        steps: of each step, the time of its end, and the seconds outside of calls in which a rank
            waits for others.
        communication: measured at the end; None: it was not.
        boot, cores: id of the kernel of the rank's machine, and its cores.
    """

    rank: int
    host: str
    began: float
    steps: tuple[tuple[float, float], ...]
    communication: Communication | None = None
    boot: str = ""
    cores: int = 0


def number_of(data: object, key: str) -> float | None:
    """Return a finite number of a parsed JSON object; None if there is none under this key."""
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


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
        value = None
        if line.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                value = number_of(json.loads(line), metric)
        else:
            match = pattern.search(line)
            value = float(match["value"]) if match else None
        if value is not None and math.isfinite(value):
            values.append(value)
    return values


def sample(
    options: Options,
    point: Point,
    number: int,
    *,
    name: str,
    plan: Plan,
    results: Mapping[str, Any],
    lines: Sequence[Line],
    files: Sequence[RankFile] = (),
    cores: int = 0,
) -> Sample:
    """Return the measurement of a run that has succeeded.

    Args:
        options: of the study.
        point: that was measured.
        number: of the run at this point.
        name: of the run.
        plan: of the run.
        results: the JSON object that the script printed last.
        lines: of its logs.
        files: of its ranks.
        cores: of the one machine below all nodes; 0: each node has its own.

    Raises:
        MalformedInputError: the script did not print the metric, or no positive value of it.
    """
    values = printed_values(_of_lowest(lines, options.metric), options.metric)
    result = number_of(results, options.metric)
    if len(values) > 1 and values[-1] == result:
        values.pop()  # the mean of the others, with the warm-up in it
    values = values or ([] if result is None else [result])
    dropped = warm_up(values)
    value = statistics.median(values[dropped:]) if values else 0.0
    if value <= 0:
        raise _no_metric(options, name, results)
    times = timeline(files)
    on_machine = Counter(boot for boot, _ in {(file.boot, file.host) for file in files})
    is_full = 0 < cores < plan.nodes * plan.ranks_per_node or any(
        0 < file.cores < on_machine[file.boot] * plan.ranks_per_node for file in files
    )
    return Sample(
        point=point.key,
        number=number,
        name=name,
        value=value,
        values=len(values),
        warm_up=dropped,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        gpus_per_node=plan.gpus_per_node,
        cpus_per_rank=plan.cpus_per_rank,
        launcher=plan.launch.launcher,
        oversubscribed=is_full or 0 < plan.gpus_per_node < plan.ranks_per_node,
        epoch_seconds=_epoch_seconds(options, value, results),
        straggler=straggler(times.get("ranks", ())),
        communication=max(
            (file.communication for file in files if file.communication),
            key=lambda entry: entry.seconds,
            default=Communication(),
        ),
        **times,
    )


def _of_lowest(lines: Iterable[Line], word: str) -> list[str]:
    """Return the lines with a word that the lowest rank printed: ranks may print the same value."""
    by_rank: dict[int, list[str]] = {}
    for line in lines:
        if line.host and word in line.text:
            by_rank.setdefault(-1 if line.rank is None else line.rank, []).append(line.text)
    known = [rank for rank in by_rank if rank >= 0]
    return by_rank[min(known or by_rank)] if by_rank else []


def timeline(files: Iterable[RankFile]) -> dict[str, Any]:
    """Return the steps of all ranks after the warm-up, as a sample has them.

    The warm-up is that of the lowest rank. Ranks that made fewer steps than others, such as a
    process that trained something else, are left out.
    """
    by_rank = {file.rank: file for file in sorted(files, key=lambda file: len(file.steps))}
    most = max((len(file.steps) for file in by_rank.values()), default=0)
    known = [by_rank[rank] for rank in sorted(by_rank) if len(by_rank[rank].steps) * 2 > most]
    if most < 2:
        return {}
    ends = [end for end, _ in known[0].steps]
    dropped = warm_up([after - before for before, after in pairwise(ends)])
    ranks = tuple(
        RankTimes(
            rank=file.rank,
            host=file.host,
            steps=steps,
            step_seconds=(file.steps[-1][0] - file.steps[dropped][0]) / steps,
            busy_seconds=math.fsum(busy for _, busy in file.steps[dropped + 1 :]) / steps,
        )
        for file in known
        if (steps := len(file.steps) - 1 - dropped) > 0
    )
    return {
        "ranks": ranks,
        "start_seconds": max(0.0, ends[0] - min(file.began for file in known)),
        "step_seconds": max((times.step_seconds for times in ranks), default=0.0),
    }


def straggler(ranks: Sequence[RankTimes]) -> Straggler | None:
    """Return the ranks on which all others wait; None if no rank is slower than the rest.

    A straggler does more by itself in each step than the others do, who wait for it in the
    collectives. More than half of the ranks cannot be stragglers: they are the rule.
    """
    if not ranks:
        return None
    usual = statistics.median_low(times.busy_seconds for times in ranks)
    deviation = statistics.median_low(abs(times.busy_seconds - usual) for times in ranks)
    slow = [
        times
        for times in ranks
        if times.busy_seconds >= _FACTOR * usual
        and times.busy_seconds - usual >= max(_SHARE * times.step_seconds, _DEVIATIONS * deviation)
    ]
    if not slow or len(slow) * 2 > len(ranks):
        return None
    return Straggler(
        ranks=tuple(times.rank for times in slow),
        hosts=tuple(sorted({times.host for times in slow})),
        busy_seconds=max(times.busy_seconds for times in slow),
        others_seconds=usual,
    )


def _epoch_seconds(options: Options, value: float, results: Mapping[str, Any]) -> float:
    """Return the time of an epoch; 0 if neither the options nor the script have what it takes."""
    samples = options.samples_per_epoch or number_of(results, "samples_per_epoch") or 0
    if samples > 0 and not options.is_time:
        return samples / value
    seconds, epochs = number_of(results, "seconds"), number_of(results, "epochs")
    return seconds / epochs if seconds and epochs and seconds > 0 and epochs > 0 else 0.0


def _no_metric(options: Options, name: str, results: Mapping[str, Any]) -> MalformedInputError:
    return MalformedInputError(
        f"the script printed no positive {options.metric!r}",
        place=f"--metric {options.metric}",
        choices=[
            key[:80]
            for key in results
            if key != options.metric and number_of(results, key) is not None
        ][:40],
        value=options.metric,
        next_step=f'toolkit logs {name}; a script prints it as JSON: {{"{options.metric}": 812.5}}',
    )
