"""Efficiency of a run, as seff and jobstats define it, and advice for the next one.

The formulas and their sources are on the page `toolkit docs run/cost`.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from toolkit.errors import SlurmUnreachableError
from toolkit.files import open_regular
from toolkit.model.run import Plan
from toolkit.runs.run import Run
from toolkit.slurm import accounting
from toolkit.slurm.accounting import Job, amounts, seconds_of, state_of
from toolkit.units import counted, human_time, whole

FIELDS = (
    *("JobIDRaw", "State", "ElapsedRaw", "AllocCPUS", "AllocTRES", "TotalCPU", "NNodes", "NTasks"),
    *("Eligible", "Start", "TimelimitRaw", "TRESUsageInTot", "TRESUsageInMax"),
)
SAMPLES = ".gpus.csv"  # what nvidia-smi printed on a node, beside the run's logs
SAMPLE_SECONDS = 30
_MOST = 16 << 20  # bytes of samples that are read of a node: three months of eight GPUs
_GIB = 1 << 30
_SHORT = 60.0  # seconds; Slurm samples memory every 30 s
_OTHERS = ("batch", "extern", "interactive")  # steps that start no ranks
_LONGEST_START = 120.0
_FEW_SAMPLES = 5


def gib(size: float) -> str:
    """Format bytes in the unit of ``--mem``: ``3.1G`` is so many times 1024 cubed."""
    return f"{size / _GIB:.3g}G"


class Gpu(NamedTuple):
    """A GPU of a run, by its samples.

    Attributes:
        busy: mean of its use in percent, as nvidia-smi defines it: a kernel ran.
        memory: the most bytes that were used.
        power: mean in watts; None: the GPU does not tell.
        limit: of its power, in watts.
        samples: its use in percent at each sample.
    """

    host: str
    number: int
    busy: float
    memory: int
    total: int
    power: float | None
    limit: float | None
    samples: tuple[float, ...]


class Memory(NamedTuple):
    """The memory of a run, in bytes on each node.

    Slurm keeps the sum over a step's tasks and the largest task: with one task on each node the
    peak of the fullest node is known, with several it is at most so many of the largest.

    Attributes:
        share: the most memory of a step by that of the job, as seff computes it.
        asked: what the job got.
        most: what the fullest node used at most.
    """

    share: float
    asked: float
    most: float


class Efficiency(NamedTuple):
    """The use of a run's resources. None: not known.

    Attributes:
        seconds: from start to end; of a job array those of all elements.
        limit_seconds: its time limit.
        cpu_share: CPU time by elapsed time and CPUs, as seff computes it.
        memory: of the element with the largest share, if it is a job array.
        waited: seconds in the queue.
        start_seconds: between the start of the job and that of its first step.
        slurm_gpu: the most use of a GPU in percent, as Slurm's own gres/gpuutil has it.
        missing: why Slurm tells no figures; empty if it does.
    """

    state: str
    seconds: float
    limit_seconds: float | None = None
    cpus: int = 0
    cpu_share: float | None = None
    memory: Memory | None = None
    waited: float | None = None
    start_seconds: float | None = None
    slurm_gpu: float | None = None
    gpus: tuple[Gpu, ...] = ()
    missing: str = ""


def measure(run: Run, *, seconds: int = 60) -> Efficiency:
    """Return what a run used; its outcome is known, or it is running.

    Args:
        run: the run.
        seconds: how long sacct may take.
    """
    came_out = run.outcome
    known = Efficiency(
        state=came_out.state if came_out else "RUNNING",
        seconds=came_out.seconds if came_out else 0.0,
    )
    try:
        records = [*accounting.ask(run.client, FIELDS, f"--jobs={run.job_id}", seconds=seconds)]
    except SlurmUnreachableError as error:
        known = known._replace(missing=f"CPU and memory: {error.cause}")
    else:
        known = from_records(records) if records else known
    return known._replace(gpus=samples(run))


def from_records(records: Sequence[Job]) -> Efficiency:
    """Return what Slurm's accounting knows of a job, or of all elements of an array."""
    jobs = {record["JobIDRaw"]: record for record in records if "." not in record["JobIDRaw"]}
    first = next(iter(jobs.values()), records[0])
    elapsed = {number: whole(job["ElapsedRaw"]) or 0 for number, job in jobs.items()}
    cpus = {number: whole(job["AllocCPUS"]) or 0 for number, job in jobs.items()}
    got = sum(elapsed[number] * cpus[number] for number in jobs)
    used = sum(seconds_of(job["TotalCPU"]) for job in jobs.values())
    peaks, memory, starts = list[float](), list[Memory](), dict[str, int]()
    for step in records:
        number, dot, name = step["JobIDRaw"].partition(".")
        if not dot or number not in jobs:
            continue
        memory += _memory(jobs[number], step)
        peaks += [amounts(step["TRESUsageInMax"]).get("gres/gpuutil", -1.0)]
        if (begin := whole(step["Start"])) and name not in _OTHERS:
            starts[number] = min(starts.get(number, begin), begin)
    times = {number: (whole(job["Eligible"]), whole(job["Start"])) for number, job in jobs.items()}
    return Efficiency(
        state=state_of(first),
        seconds=float(sum(elapsed.values())),
        limit_seconds=(whole(first["TimelimitRaw"]) or 0) * 60.0 or None,
        cpus=max(cpus.values(), default=0),
        cpu_share=used / got if used and got else None,
        memory=max(memory, default=None),
        slurm_gpu=max((peak for peak in peaks if peak >= 0), default=None),
        waited=max(
            (start - since for since, start in times.values() if since and start), default=None
        ),
        start_seconds=max(
            (begin - (times[number][1] or begin) for number, begin in starts.items()), default=None
        ),
    )


def _memory(job: Job, step: Job) -> Iterator[Memory]:
    asked, nodes = amounts(job["AllocTRES"]).get("mem"), whole(job["NNodes"]) or 1
    total = amounts(step["TRESUsageInTot"]).get("mem")
    largest = amounts(step["TRESUsageInMax"]).get("mem", 0.0)
    on, tasks = whole(step["NNodes"]) or 1, whole(step["NTasks"]) or 1
    if asked and total:
        most = max(total / on, min(total, math.ceil(tasks / on) * largest))
        yield Memory(total / asked, asked / nodes, most)


def samples(run: Run) -> tuple[Gpu, ...]:
    """Return the GPUs of a run by what nvidia-smi printed on its nodes, in its last attempt."""
    newest = dict[tuple[str, str], str]()
    with suppress(OSError):
        # Attempt 10 comes after 9: 7-nid001, 7.1-nid001, ..., 7.10-nid001.
        for name in sorted(run.names(run.logs), key=lambda name: (len(name), name)):
            job, _, host = name.removesuffix(SAMPLES).partition("-")
            number = job.partition(".")[0]
            if name.endswith(SAMPLES) and number.partition("_")[0] == str(run.number):
                newest[number, host] = name
    return tuple(gpu for place in sorted(newest) for gpu in _read(run, place[1], newest[place]))


def _read(run: Run, host: str, name: str) -> Iterator[Gpu]:
    """Yield the GPUs of a node: index, use, memory used and in all, power and its limit."""
    rows = defaultdict[float, list[list[float]]](list)
    with suppress(OSError), open_regular(run.logs / name, below=run.directory) as file:
        for line in file.read(_MOST).decode("utf-8", "replace").splitlines():
            values = [_number(word.strip()) for word in line.split(",")]
            if len(values) == 6 and math.isfinite(values[0]) and math.isfinite(values[1]):
                rows[values[0]].append(values)
    for number, own in sorted(rows.items()):
        columns = zip(*own, strict=True)
        _, busy, used, total, power, limit = ([*filter(math.isfinite, each)] for each in columns)
        yield Gpu(
            host=host,
            number=int(number),
            busy=statistics.fmean(busy),
            memory=int(max(used, default=0.0) * (1 << 20)),
            total=int(max(total, default=0.0) * (1 << 20)),
            power=statistics.fmean(power) if power else None,
            limit=max(limit, default=None),
            samples=tuple(busy),
        )


def _number(word: str) -> float:
    """Return a value of nvidia-smi; NaN for its ``[N/A]`` and all that is not a plain number."""
    return float(word) if re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", word, re.ASCII) else math.nan


def advise(known: Efficiency, plan: Plan) -> list[tuple[bool, str]]:
    """Return what to change in the next run, the most important first.

    Returns:
        whether a large part was not used, and the advice.
    """
    advice = [*_gpu_advice(known), *_job_advice(known, plan)]
    return sorted(advice, key=lambda row: not row[0])


def _job_advice(known: Efficiency, plan: Plan) -> Iterator[tuple[bool, str]]:
    is_evidence = known.state in ("COMPLETED", "TIMEOUT") and known.seconds >= _SHORT
    if known.memory is not None:
        asked, used = known.memory.asked, known.memory.most
        share, better = used / asked, f"--mem {math.ceil(used * 1.25 / _GIB)}G"
        text = f"asked {gib(asked)} of memory a node, used {gib(used)}: {better}"
        if share > 0.9:
            yield False, f"{text} leaves room"
        elif share < 0.5 and is_evidence and asked > 2 * _GIB:
            yield share < 0.25 and asked >= 8 * _GIB, f"{text} may start earlier"
    cpu = known.cpu_share
    if cpu is not None and cpu < 0.5 and is_evidence and not known.gpus and plan.cpus_per_rank > 1:
        fewer = max(1, math.ceil(cpu * plan.cpus_per_rank * 1.25))
        busy = cpu * known.cpus
        yield cpu < 0.2, f"{busy:.1f} of {known.cpus} CPUs were busy: --cpus-per-task {fewer}"
    lost, limit = known.start_seconds or 0.0, known.limit_seconds or 0.0
    if lost > max(_LONGEST_START, 0.1 * known.seconds):
        yield True, f"{human_time(lost)} passed before the first step: what is the script doing?"
    if known.state == "COMPLETED" and not plan.array and 3600 <= limit > 4 * known.seconds:
        shorter = human_time(math.ceil(max(known.seconds * 1.5, 300) / 300) * 300)
        text = f"asked {human_time(limit)}, took {human_time(known.seconds)}"
        yield False, f"{text}: --time {shorter} fits into earlier gaps"


def _gpu_advice(known: Efficiency) -> Iterator[tuple[bool, str]]:
    gpus = [gpu for gpu in known.gpus if len(gpu.samples) >= _FEW_SAMPLES]
    idle = [f"GPU {gpu.number} of {gpu.host}" for gpu in gpus if max(gpu.samples) < 1]
    busy = statistics.fmean(gpu.busy for gpu in gpus) if gpus else 100.0
    powers = [gpu.power / gpu.limit for gpu in gpus if gpu.power and gpu.limit]
    power = statistics.fmean(powers) if powers else 1.0
    if idle:
        which = f"{counted(len(idle), 'GPU')} did nothing, such as {idle[0]}"
        yield True, f"{which}: a rank for each, or fewer GPUs"
    elif busy < 30:
        text = "fewer GPUs, larger batches, or more workers that load data"
        yield True, f"the GPUs were busy {busy:.0f} % of the time: {text}"
    elif busy > 90 and power < 0.35:
        text = "they wait for communication, or hang; see toolkit docs run/hang"
        yield True, f"the GPUs looked busy at {power:.0%} of their power: {text}"
