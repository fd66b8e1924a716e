"""The measurement of one run, from its results, its lines and the files of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.bench.scale import rank_files
from toolkit.bench.scale.model import Communication, Options, Point, RankTimes, Sample
from toolkit.bench.scale.rank_files import RankFile
from toolkit.bench.scale.steady import metric_of, number_of, printed_values
from toolkit.errors import MalformedInputError
from toolkit.model.plan import Plan
from toolkit.runs.logs import Line

_BUSY, _STEP = "busy_seconds", "step_seconds"
_FLOAT_BYTES = 4  # of a parameter, where a script prints only their number


class Evidence(NamedTuple):
    """The evidence of one run that has succeeded.

    Attributes:
        lines: of its logs.
        results: the JSON object that the script printed last.
        files: of its ranks.
        machines: host -> id of its kernel and cores.
    """

    plan: Plan
    results: Mapping[str, Any]
    lines: Sequence[Line]
    files: Sequence[RankFile] = ()
    machines: Mapping[str, tuple[str, int]] = {}
    nodelist: str = ""
    job_id: int = 0
    ended: str = ""
    name: str = ""


def sample(options: Options, point: Point, number: int, evidence: Evidence) -> Sample:
    """Return the measurement of a run.

    Raises:
        MalformedInputError: the script did not print the metric, or no positive value of it.
    """
    plan, ranks = evidence.plan, evidence.plan.nodes * evidence.plan.ranks_per_node
    steady = metric_of(
        printed_values(_of_lowest(evidence.lines, options.metric), options.metric),
        number_of(evidence.results, options.metric),
    )
    if steady is None or steady.value <= 0:
        raise _no_metric(options, evidence)
    timeline = rank_files.timeline(evidence.files)
    times = timeline.ranks or _printed(evidence.lines)
    return Sample(
        point=point.key,
        number=number,
        name=evidence.name,
        value=steady.value,
        values=steady.values,
        warm_up=steady.warm_up,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        gpus_per_node=plan.gpus_per_node,
        cpus_per_rank=plan.cpus_per_rank,
        launcher=plan.launch.launcher,
        oversubscribed=_is_oversubscribed(evidence),
        cores=rank_files.cores(evidence.machines),
        start_seconds=timeline.start_seconds,
        warm_up_seconds=timeline.warm_up_seconds,
        step_seconds=timeline.step_seconds
        or max((entry.step_seconds for entry in times), default=0.0),
        epoch_seconds=_epoch_seconds(options, steady.value, evidence.results),
        straggler=rank_files.straggler(times),
        communication=_communication(evidence, ranks),
        ranks=times,
        nodelist=evidence.nodelist,
        job_id=evidence.job_id,
        ended=evidence.ended,
    )


def _is_oversubscribed(evidence: Evidence) -> bool:
    plan = evidence.plan
    shares_gpus = 0 < plan.gpus_per_node < plan.ranks_per_node
    return shares_gpus or rank_files.is_oversubscribed(evidence.machines, plan.ranks_per_node)


def _of_lowest(lines: Iterable[Line], word: str) -> list[str]:
    """Return the lines with a word that the lowest rank printed: ranks may print the same value."""
    by_rank: dict[int, list[str]] = {}
    for line in lines:
        if line.host and word in line.text:
            by_rank.setdefault(-1 if line.rank is None else line.rank, []).append(line.text)
    known = [rank for rank in by_rank if rank >= 0]
    return by_rank[min(known or by_rank)] if by_rank else []


def _printed(lines: Iterable[Line]) -> tuple[RankTimes, ...]:
    """Return the steps that ranks printed themselves."""
    texts: dict[tuple[int, str], list[str]] = {}
    for line in lines:
        if line.rank is not None and _BUSY in line.text:
            texts.setdefault((line.rank, line.host), []).append(line.text)
    busy = {rank: printed_values(entries, _BUSY) for rank, entries in texts.items()}
    steps = {rank: printed_values(entries, _STEP) for rank, entries in texts.items()}
    return rank_files.printed_times(
        {rank: values for rank, values in busy.items() if values}, steps
    )


def _communication(evidence: Evidence, ranks: int) -> Communication:
    measured = rank_files.communication(evidence.files, ranks)
    parameters = number_of(evidence.results, "parameters")
    if measured.seconds or ranks == 1 or not parameters:
        return measured
    return Communication(bytes=int(parameters) * _FLOAT_BYTES, note=measured.note)


def _epoch_seconds(options: Options, value: float, results: Mapping[str, Any]) -> float:
    """Return the time of an epoch; 0 if neither the options nor the script have what it takes."""
    samples = options.samples_per_epoch or number_of(results, "samples_per_epoch") or 0
    if samples > 0 and not options.is_time:
        return samples / value
    seconds, epochs = number_of(results, "seconds"), number_of(results, "epochs")
    return seconds / epochs if seconds and epochs and seconds > 0 and epochs > 0 else 0.0


def _no_metric(options: Options, evidence: Evidence) -> MalformedInputError:
    keys = [
        key
        for key in evidence.results
        if key != options.metric and number_of(evidence.results, key) is not None
    ]
    others = f", but {', '.join(key[:80] for key in keys[:10])}" if keys else ""
    return MalformedInputError(
        f"the script printed no positive {options.metric!r}{others}",
        place=f"--metric {options.metric}",
        choices=[key[:80] for key in keys[:40]],
        value=options.metric,
        next_step=f"toolkit logs {evidence.name}; a script prints it as JSON: "
        f'{{"{options.metric}": 812.5}}',
    )
