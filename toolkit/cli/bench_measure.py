"""`toolkit bench allreduce` and `compare`: measure libraries and trainings on a cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from toolkit import reports
from toolkit.api.run import CompletedRun
from toolkit.bench import allreduce as measuring
from toolkit.bench import compare as comparing
from toolkit.bench.allreduce import BACKENDS, JOB, Measured
from toolkit.bench.jobs import FailedRunError, script_of
from toolkit.bench.jobs import run as run_job
from toolkit.cli import console
from toolkit.cli.follow import show_explanation, show_outcome
from toolkit.cli.options import flags, job_options
from toolkit.cli.shared import completion, json_option
from toolkit.config import shipped
from toolkit.errors import UsageError
from toolkit.files import write_atomically
from toolkit.runs.logs import Tail

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


def size(text: str) -> int:
    """Return the bytes of ``1048576``, ``64K``, ``256M`` or ``1G``, all powers of two."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text, re.ASCII | re.IGNORECASE)
    if not match or not int(match[1]):
        raise click.BadParameter(f"{text!r} is not a size; an example is 256M")
    count = int(match[1]) << _UNITS[match[2].upper()]
    if count % 4:
        raise click.BadParameter(f"{text!r} is not a multiple of 4 bytes, the size of one number")
    return count


@click.command("allreduce")
@job_options
@click.option(
    "--backend",
    type=click.Choice(tuple(BACKENDS)),
    multiple=True,
    help="The library to measure; repeatable, one job each. Default auto: nccl if PyTorch can use "
    "GPUs, else gloo.",
)
@click.option("--min-size", type=size, default="1K", show_default=True, help="The smallest buffer.")
@click.option(
    "--max-size", type=size, default="256M", show_default=True, help="The largest buffer."
)
@click.option(
    "--factor",
    type=click.IntRange(2),
    default=4,
    show_default=True,
    help="The factor from one buffer size to the next.",
)
@click.option(
    "--show-buffers",
    is_flag=True,
    help="Print each device's buffer before and after, rank by rank, instead of measuring.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plot to this SVG file (default: in the directory of the last run).",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the scripts that would be submitted, and stop."
)
@json_option
def allreduce(
    backend: tuple[str, ...],
    min_size: int,
    max_size: int,
    factor: int,
    show_buffers: bool,
    plot: Path | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure all-reduce over NCCL, Gloo, Horovod or MPI.

    It adds up buffers over all ranks, and checks every sum. The bus bandwidth is printed by NCCL's
    definition.

    \b
    Examples:
      toolkit bench allreduce --nodes 2
      toolkit bench allreduce --nodes 2 --backend gloo --backend horovod --max-size 16M
      toolkit bench allreduce --nodes 2 --gpus 4 --image pytorch_25.06 --backend nccl-tests
      toolkit bench allreduce --show-buffers          2 nodes x 4 devices

    The job is jobs/nccl-allreduce; all options of `toolkit run` apply. The exit code is 1 if a sum
    is wrong.
    """
    cwd, given = Path.cwd(), dict(flags(options, ()).values)
    chosen = backend or ("auto",)
    _refuse(chosen, (min_size, max_size), show_buffers=show_buffers)
    say = _show_buffer if show_buffers and not as_json else console.say
    done: list[Measured] = []
    for name in chosen:
        script = BACKENDS[name].script  # another one of the job's folder
        target = str(shipped("jobs") / JOB / script) if script else f"jobs/{JOB}"
        adapt = measuring.refusing(name)
        layer = measuring.settings(
            name, given, (min_size, max_size, factor), show_buffers=show_buffers
        )
        if dry_run:
            console.out(script_of(target, layer, cwd, adapt=adapt).rstrip("\n"))
            continue
        ran = run_job(target, layer, cwd, say, adapt=adapt)
        result = _measured(name, ran)
        if result is None:
            return show_failed_run(ran)
        done.append(result)
    if done:
        path = None if show_buffers else _plotted(done, plot or ran.run.directory / "allreduce.svg")
        _show(done, path, as_json=as_json)
    return 1 if any(result.wrong for result in done) else 0


def _measured(backend: str, ran: CompletedRun) -> Measured | None:
    """Return what a run measured, or None if it failed for another reason than a wrong sum."""
    result = measuring.measured(
        backend,
        ran.run.plan.shape,
        ran.run.plan.nodes * ran.run.plan.ranks_per_node,
        ran.outcome.results,
        [line.text for line in Tail(ran.run).read(last=True)],
        ran.run.name,
    )
    if result is None or (ran.outcome.kind != "ok" and not result.wrong):
        return None
    return result


def _show_buffer(subject: str, text: str) -> None:
    """Print a buffer as a result, and any other line as a note."""
    if text.startswith(("before ", "after ")):
        console.out(text)
    else:
        console.say(subject, text)


def _refuse(backends: tuple[str, ...], sizes: tuple[int, int], *, show_buffers: bool) -> None:
    """Raise UsageError for options that do not fit each other."""
    smallest, largest = sizes
    if largest < smallest:
        raise UsageError(
            f"the largest buffer is smaller than the smallest, which has {smallest} bytes",
            place="--max-size",
            next_step="--max-size 256M",
        )
    if show_buffers and "nccl-tests" in backends:
        others = "--backend gloo, or leave --show-buffers out"
        raise UsageError("nccl-tests shows no buffers", place="--backend", next_step=others)


def show_failed_run(ran: CompletedRun) -> int:
    """Print how a run failed, and return its exit code."""
    show_outcome(ran.outcome, ran.run)
    show_explanation(ran.run)
    return ran.outcome.exit_code or 1


def _plotted(done: list[Measured], path: Path) -> Path:
    write_atomically(path, reports.render("chart.svg.j2", drawing=measuring.plot(done)))
    return path


def _show(done: list[Measured], plot: Path | None, *, as_json: bool) -> None:
    if as_json:
        console.out_json({"measured": done, "plot": str(plot) if plot else None})
        return
    header, rows = measuring.table(done)
    if rows:
        console.out(console.table(header, rows))
    for result in done:
        verdict = "every sum is right" if not result.wrong else f"{result.wrong} elements are WRONG"
        best = max((row.bus_gb_per_s for row in result.rows), default=0.0)
        bandwidth = f", {best:.3f} GB/s on the bus at best" if result.rows else ""
        console.out(f"{result.backend}: {result.shape}, {verdict}{bandwidth}")
    if plot:
        console.say("plot", str(plot))


@completion
def complete_jobs() -> Iterable[str]:
    """Return the shipped jobs, and runs below runs/."""
    names = [f"jobs/{path.parent.name}" for path in shipped("jobs").glob("*/job.toml")]
    return [*names, *(f"runs/{path.parent.name}" for path in Path("runs").glob("*/outcome.json"))]


@click.command("compare")
@job_options
@click.option(
    "--arguments",
    metavar="WORDS",
    default="",
    help="More arguments for every script, as one text: --arguments '--epochs 3'.",
)
@click.option(
    "--runs",
    "rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How often each job runs, in turns; the medians are shown.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the scripts that would be submitted, and stop."
)
@json_option
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
def compare(
    jobs: tuple[str, ...], arguments: str, rounds: int, dry_run: bool, as_json: bool, **options: Any
) -> int:
    """Compare trainings: samples per second, memory, accuracy.

    The jobs run one after the other. A job is a folder with a job.toml, or a training script. The
    directory of a run that has ended is not run again. Speed and accuracy are what the script
    prints in its last line of JSON (samples_per_second, accuracy); memory is the most that one
    process of the script had.

    \b
    Examples:
      toolkit bench compare jobs/digits-dataparallel jobs/digits-ddp jobs/digits-horovod
      toolkit bench compare --gpus 4 --nodes 1 --runs 3 jobs/digits-dataparallel jobs/digits-ddp
      toolkit bench compare runs/digits-ddp-0001 runs/digits-ddp-0002
    """
    layer = comparing.settings(flags(options, ()).values, shlex.split(arguments))
    if dry_run:
        for job in jobs:
            console.out(script_of(job, layer, Path.cwd()).rstrip("\n"))
        return 0
    try:
        rows = comparing.run(jobs, layer, rounds, Path.cwd(), console.say)
    except FailedRunError as failed:
        return show_failed_run(failed.ran)
    console.result(rows, console.table(*comparing.table(rows)), as_json=as_json)
    return 0
