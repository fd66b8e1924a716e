"""`toolkit bench compare`: trainings side by side: samples by second, memory, accuracy.

Speed and accuracy are those that the scripts print in their last line of JSON. Memory is measured
from outside of them: every Python of the job imports ``inside/toolkit_bench.py``, which asks the
kernel at the end. Slurm's own numbers need accounting, and are samples of every 30 s.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace

from toolkit.api.run import CompletedRun
from toolkit.bench import jobs
from toolkit.model.base import Model
from toolkit.model.case import Case
from toolkit.planning.settings import Layer
from toolkit.runs.run import Run
from toolkit.units import or_dash

_MEMORY = "memory"  # of a run's directory: a file for each process


class Row(Model, frozen=True, kw_only=True):
    """One job; None for what its script does not print.

    Attributes:
        samples_per_second: the median over its runs, all ranks together.
        host_mb: the most memory of one rank, in 10^6 bytes.
        gpu_mb: the most that PyTorch had on one GPU.
        runs: names of the runs.
    """

    job: str
    launcher: str
    shape: str
    samples_per_second: float | None = None
    host_mb: float | None = None
    gpu_mb: float | None = None
    accuracy: float | None = None
    runs: tuple[str, ...] = ()


def settings(given: Mapping[str, Any], arguments: Sequence[str]) -> Layer:
    """Return the settings of all jobs."""
    own = {"arguments": tuple(arguments)} if arguments else {}
    return Layer("bench compare", {**given, **own})


def _remembering(given: Case) -> Case:
    """Have the processes of a run write their records into a directory of its own."""
    env = {**given.job.env, "TOOLKIT_MEMORY": f"{given.run}/{_MEMORY}"}
    return given._replace(job=replace(given.job, env=env))


def run(
    targets: Sequence[str], layer: Layer, rounds: int, cwd: Path, say: jobs.Inform
) -> list[Row]:
    """Run each job ``rounds`` times, in turns, and put them side by side.

    Raises:
        FailedRunError: a job failed.
        ToolkitError: one could not be planned or submitted.
    """
    measured_runs: dict[str, list[CompletedRun]] = {target: [] for target in targets}
    for _ in range(rounds):
        for target, runs in measured_runs.items():
            ran = jobs.run(
                target,
                layer,
                cwd,
                say,
                adapt=_remembering,
                on_plan=lambda plan: jobs.place_hook(plan, _MEMORY),
            )
            if ran.outcome.kind != "ok":
                raise jobs.FailedRunError(ran)
            runs.append(ran)
    return [row(target, runs) for target, runs in measured_runs.items()]


def memory(run: Run) -> tuple[float, float]:
    """Return the peak memory of the script's processes on the host and on a GPU, in MB.

    Agents and the like run other scripts.
    """
    words = run.plan.launch.program
    scripts = {PurePosixPath(word).name for word in words if word.endswith(".py")}
    peaks = [(0.0, 0.0)]
    for path in sorted((run.directory / _MEMORY).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if PurePosixPath(record["script"]).name in scripts:
            peaks.append((record["host_mb"], record["gpu_mb"]))
    return max(host for host, _ in peaks), max(gpu for _, gpu in peaks)


def row(target: str, runs: Sequence[CompletedRun]) -> Row:
    """Return the runs of a job as one row."""
    plan, results = runs[0].run.plan, [ran.outcome.results for ran in runs]
    host, gpu = zip(*(memory(ran.run) for ran in runs), strict=True)
    return Row(
        job=PurePosixPath(target).name,
        launcher=plan.launch.launcher,
        shape=plan.shape,
        samples_per_second=_median(record.get("samples_per_second") for record in results),
        host_mb=max(host) or None,
        gpu_mb=max(gpu) or None,
        accuracy=_median(record.get("accuracy") for record in results),
        runs=tuple(ran.run.name for ran in runs),
    )


def _median(values: Iterable[object]) -> float | None:
    known = [float(value) for value in values if isinstance(value, int | float)]
    return statistics.median(known) if known else None


def table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows; the speed is also a multiple of the first job's."""
    header = (
        "job",
        "launcher",
        "shape",
        "samples/s",
        "speed",
        "MB per rank",
        "MB per GPU",
        "accuracy",
    )
    first = rows[0].samples_per_second if rows else None
    return header, [
        (
            record.job,
            record.launcher,
            record.shape,
            or_dash(record.samples_per_second, ".0f"),
            or_dash(
                record.samples_per_second / first if first and record.samples_per_second else None,
                ".2f",
            ),
            or_dash(record.host_mb, ".0f"),
            or_dash(record.gpu_mb, ".0f"),
            or_dash(record.accuracy, ".3f"),
        )
        for record in rows
    ]
