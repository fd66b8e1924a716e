"""The files that the ranks of a measured run write: their steps, and the machines below. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.bench.scale.model import Communication, RankTimes, Straggler
from toolkit.bench.scale.steady import number_of, warm_up

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


class Timeline(NamedTuple):
    """The steps of all ranks after the warm-up.

    Attributes:
        start_seconds: from the start of the first rank to the end of its first step.
        warm_up_seconds: by how much the steps of the warm-up took longer than as many later ones.
        step_seconds: mean time of a step, of the slowest rank.
    """

    ranks: tuple[RankTimes, ...] = ()
    start_seconds: float = 0.0
    warm_up_seconds: float = 0.0
    step_seconds: float = 0.0


def parse(text: str) -> RankFile | None:
    """Return the content of a rank's file; None if it is not one.

    Its last line may be incomplete, because the rank was killed.
    """
    header: dict[str, Any] | None = None
    ends: list[float] = []
    busy: list[float] = []
    communication: Communication | None = None
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            if "allreduce" in entry:
                communication = _communication(entry)
            elif header is None and number_of(entry, "rank") is not None:
                header = entry
        elif isinstance(entry, list) and len(entry) == 2 and all(map(_is_finite, entry)):
            ends.append(float(entry[0]))
            busy.append(float(entry[1]))
    if header is None or not ends:
        return None
    rank, began = number_of(header, "rank"), number_of(header, "began")
    host = str(header.get("host", ""))[:255]
    return RankFile(int(rank or 0), host, began or ends[0], tuple(ends), tuple(busy), communication)


def _is_finite(value: object) -> bool:
    return number_of({"": value}, "") is not None


def _communication(entry: Mapping[str, Any]) -> Communication | None:
    seconds, count = number_of(entry, "allreduce"), number_of(entry, "bytes")
    if seconds is None or count is None or seconds <= 0:
        return None
    return Communication(
        bytes=int(count), seconds=seconds, backend=str(entry.get("backend", ""))[:40]
    )


def communication(files: Sequence[RankFile], ranks: int) -> Communication:
    """Return the all-reduce of a run: of the rank that took longest."""
    measured = [file.communication for file in files if file.communication]
    if measured:
        return max(measured, key=lambda entry: entry.seconds)
    if ranks == 1:
        return Communication(note="one rank adds up nothing")
    return Communication(
        note="not measured: a sharded model, or no process group of PyTorch or Horovod"
        if files
        else "not measured: no rank ran an optimizer of PyTorch"
    )


def timeline(files: Iterable[RankFile]) -> Timeline:
    """Return the steady state of all ranks that recorded steps.

    The warm-up is that of the lowest rank. Ranks that made fewer steps than others, such as a
    process that trained something else, are left out.
    """
    known = sorted(files, key=lambda file: (file.rank, -len(file.ends)))
    known = list({file.rank: file for file in reversed(known)}.values())[::-1]
    most = max((len(file.ends) for file in known), default=0)
    known = [file for file in known if len(file.ends) * 2 > most]
    if most < 2:
        return Timeline()
    first = known[0]
    durations = [after - before for before, after in zip(first.ends, first.ends[1:], strict=False)]
    dropped = warm_up(durations)
    rest = statistics.median(durations[dropped:])
    ranks = tuple(times for file in known if (times := _times(file, dropped)) is not None)
    return Timeline(
        ranks=ranks,
        start_seconds=max(0.0, first.ends[0] - min(file.began for file in known)),
        warm_up_seconds=max(0.0, sum(durations[:dropped]) - dropped * rest),
        step_seconds=max((times.step_seconds for times in ranks), default=0.0),
    )


def _times(file: RankFile, dropped: int) -> RankTimes | None:
    steps = len(file.ends) - 1 - dropped
    if steps < 1:
        return None
    return RankTimes(
        rank=file.rank,
        host=file.host,
        steps=steps,
        step_seconds=(file.ends[-1] - file.ends[dropped]) / steps,
        busy_seconds=math.fsum(file.busy[dropped + 1 :]) / steps,
    )


def printed_times(
    busy: Mapping[tuple[int, str], Sequence[float]],
    steps: Mapping[tuple[int, str], Sequence[float]],
) -> tuple[RankTimes, ...]:
    """Return the steps of ranks that print ``busy_seconds`` themselves.

    Args:
        busy: rank and host -> the values that it printed.
        steps: the same of ``step_seconds``; a rank that does not print it has none.
    """
    times = []
    for (rank, host), values in sorted(busy.items()):
        dropped = warm_up(values)
        whole = steps.get((rank, host), ())[dropped:]
        times.append(
            RankTimes(
                rank=rank,
                host=host,
                steps=len(values) - dropped,
                step_seconds=statistics.fmean(whole) if whole else 0.0,
                busy_seconds=statistics.fmean(values[dropped:]),
            )
        )
    return tuple(times)


def straggler(ranks: Sequence[RankTimes]) -> Straggler | None:
    """Return the ranks on which all others wait; None if no rank is slower than the rest.

    A straggler does more by itself in each step than the others do, who wait for it in the
    collectives. More than half of the ranks cannot be stragglers: they are the rule.
    """
    if len(ranks) < 2:
        return None
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


def cores(machines: Mapping[str, tuple[str, int]]) -> int:
    """Return the cores of the machines below some hosts; 0 if they are unknown.

    Args:
        machines: host -> id of its kernel and cores. Hosts with one kernel are one machine.
    """
    return sum(dict(machines.values()).values())


def is_oversubscribed(machines: Mapping[str, tuple[str, int]], ranks_per_node: int) -> bool:
    """Return whether a machine has more ranks than cores."""
    hosts = [boot for boot, _ in machines.values()]
    return any(hosts.count(boot) * ranks_per_node > count for boot, count in set(machines.values()))
