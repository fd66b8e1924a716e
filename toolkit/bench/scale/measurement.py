"""The measurement of one run, from its results, its lines and the files of its ranks. Pure."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from toolkit.bench.scale.model import Communication, Options, Point, RankTimes, Sample, Straggler
from toolkit.bench.scale.statistics import warm_up
from toolkit.errors import MalformedInputError
from toolkit.model.run import Plan
from toolkit.runs.logs import Line

_FLOAT_BYTES = 4  # of a parameter, where a script prints only their number
_MOST = 100_000  # values that are read of one run
_LONGEST = 10_000  # characters of a line that can hold a value
_NUMBER = r"(?P<value>[+-]?\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,3})?)"
# A rank is a straggler if its own work in a step takes by so much longer than the others' median,
_FACTOR = 1.25
# by so much of the whole step,
_SHARE = 0.1
# and by so many deviations of the others, where there are enough of them to have one.
_DEVIATIONS = 5.0
_ENOUGH = 4


class RankFile(NamedTuple):
    """The steps of one process.

    Attributes:
        began: start of the process, in seconds since the epoch.
        ends: the time of the end of each step.
        busy: of each step, the seconds outside of calls in which a rank waits for others.
        communication: measured at the end; None: it was not.
    """

    rank: int
    host: str
    began: float
    ends: tuple[float, ...]
    busy: tuple[float, ...]
    communication: Communication | None


def number_of(data: object, key: str) -> float | None:
    """Return a finite number of a parsed JSON object; None if there is none under this key."""
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def parse(text: str) -> RankFile | None:
    """Return the content of a rank's file; None if it is not one.

    Its last line may be incomplete, because the rank was killed.
    """
    header: dict[str, Any] = {}
    steps: list[list[float]] = []
    communication: Communication | None = None
    for entry in _json_lines(text):
        if isinstance(entry, list) and len(entry) == 2:
            own = [number_of({"": value}, "") for value in entry]
            steps += [[value for value in own if value is not None]] if None not in own else []
        elif isinstance(entry, dict) and "allreduce" in entry:
            seconds, size = number_of(entry, "allreduce"), number_of(entry, "bytes")
            communication = None
            if seconds is not None and size is not None and seconds > 0:
                backend = str(entry.get("backend", ""))[:40]
                communication = Communication(bytes=int(size), seconds=seconds, backend=backend)
        elif number_of(entry, "rank") is not None:
            header = header or entry
    rank = number_of(header, "rank")
    if rank is None or not steps:
        return None
    ends, busy = zip(*steps, strict=True)
    began, host = number_of(header, "began") or ends[0], str(header.get("host", ""))[:255]
    return RankFile(int(rank), host, began, ends, busy, communication)


def _json_lines(text: str) -> Iterator[Any]:
    for line in text.split("\n"):  # a string in JSON may hold U+2028
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


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
        if line.lstrip().startswith("{"):
            value = next((number_of(entry, metric) for entry in _json_lines(line.strip())), None)
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
    times = timeline(files) or _printed_times(lines)
    is_full = 0 < cores < plan.nodes * plan.ranks_per_node
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
        communication=_communication(files, results, plan.nodes * plan.ranks_per_node),
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
    known = sorted(files, key=lambda file: (file.rank, -len(file.ends)))
    known = list({file.rank: file for file in reversed(known)}.values())[::-1]
    most = max((len(file.ends) for file in known), default=0)
    known = [file for file in known if len(file.ends) * 2 > most]
    if most < 2:
        return {}
    ends = known[0].ends
    durations = [after - before for before, after in pairwise(ends)]
    dropped = warm_up(durations)
    rest = statistics.median(durations[dropped:])
    ranks = tuple(
        RankTimes(
            rank=file.rank,
            host=file.host,
            steps=steps,
            step_seconds=(file.ends[-1] - file.ends[dropped]) / steps,
            busy_seconds=math.fsum(file.busy[dropped + 1 :]) / steps,
        )
        for file in known
        if (steps := len(file.ends) - 1 - dropped) > 0
    )
    return {
        "ranks": ranks,
        "start_seconds": max(0.0, ends[0] - min(file.began for file in known)),
        "warm_up_seconds": max(0.0, sum(durations[:dropped]) - dropped * rest),
        "step_seconds": max((times.step_seconds for times in ranks), default=0.0),
    }


def _printed_times(lines: Iterable[Line]) -> dict[str, Any]:
    """Return the steps of ranks that print ``busy_seconds`` themselves, as a sample has them."""
    texts: dict[tuple[int, str], list[str]] = {}
    for line in lines:
        if line.rank is not None and "busy_seconds" in line.text:
            texts.setdefault((line.rank, line.host), []).append(line.text)
    ranks = []
    for (rank, host), own in sorted(texts.items()):
        if busy := printed_values(own, "busy_seconds"):
            dropped = warm_up(busy)
            whole = printed_values(own, "step_seconds")[dropped:]
            ranks.append(
                RankTimes(
                    rank=rank,
                    host=host,
                    steps=len(busy) - dropped,
                    step_seconds=statistics.fmean(whole) if whole else 0.0,
                    busy_seconds=statistics.fmean(busy[dropped:]),
                )
            )
    most = max((times.step_seconds for times in ranks), default=0.0)
    return {"ranks": tuple(ranks), "step_seconds": most}


def straggler(ranks: Sequence[RankTimes]) -> Straggler | None:
    """Return the ranks on which all others wait; None if no rank is slower than the rest.

    A straggler does more by itself in each step than the others do, who wait for it in the
    collectives. More than half of the ranks cannot be stragglers: they are the rule.
    """
    ordered = sorted(ranks, key=lambda times: times.busy_seconds)
    for count in range(1, len(ordered) // 2 + 1):
        slow, rest = ordered[-count:], ordered[:-count]
        if _is_apart(slow[0], rest) and not (len(rest) > 1 and _is_apart(rest[-1], rest[:-1])):
            return Straggler(
                ranks=tuple(sorted(times.rank for times in slow)),
                hosts=tuple(sorted({times.host for times in slow})),
                busy_seconds=slow[-1].busy_seconds,
                others_seconds=statistics.median(times.busy_seconds for times in rest),
            )
    return None


def _is_apart(times: RankTimes, rest: Sequence[RankTimes]) -> bool:
    others = [other.busy_seconds for other in rest]
    median = statistics.median(others)
    excess = times.busy_seconds - median
    step = times.step_seconds or times.busy_seconds
    if times.busy_seconds < _FACTOR * median or excess < _SHARE * step or excess <= 0:
        return False
    deviation = statistics.median(abs(value - median) for value in others)
    return len(rest) < _ENOUGH or excess >= _DEVIATIONS * deviation


def _communication(
    files: Sequence[RankFile], results: Mapping[str, Any], ranks: int
) -> Communication:
    """Return the all-reduce of a run, of the rank that took longest, or why it was not measured."""
    measured = [file.communication for file in files if file.communication]
    if measured:
        return max(measured, key=lambda entry: entry.seconds)
    if ranks == 1:
        return Communication(note="one rank adds up nothing")
    note = "not measured: no rank ran an optimizer of PyTorch"
    if files:
        note = "not measured: a sharded model, or no process group of PyTorch or Horovod"
    parameters = number_of(results, "parameters") or 0
    return Communication(bytes=int(parameters) * _FLOAT_BYTES, note=note)


def _epoch_seconds(options: Options, value: float, results: Mapping[str, Any]) -> float:
    """Return the time of an epoch; 0 if neither the options nor the script have what it takes."""
    samples = options.samples_per_epoch or number_of(results, "samples_per_epoch") or 0
    if samples > 0 and not options.is_time:
        return samples / value
    seconds, epochs = number_of(results, "seconds"), number_of(results, "epochs")
    return seconds / epochs if seconds and epochs and seconds > 0 and epochs > 0 else 0.0


def _no_metric(options: Options, name: str, results: Mapping[str, Any]) -> MalformedInputError:
    keys = [
        key[:80] for key in results if key != options.metric and number_of(results, key) is not None
    ]
    others = f", but {', '.join(keys[:10])}" if keys else ""
    return MalformedInputError(
        f"the script printed no positive {options.metric!r}{others}",
        place=f"--metric {options.metric}",
        choices=keys[:40],
        value=options.metric,
        next_step=f'toolkit logs {name}; a script prints it as JSON: {{"{options.metric}": 812.5}}',
    )
