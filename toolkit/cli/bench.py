"""`toolkit bench`: measure all-reduce, compare trainings, and measure how one scales."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from toolkit.api.run import CompletedRun
from toolkit.bench import allreduce as measuring
from toolkit.bench import compare as comparing
from toolkit.bench import stage as staging
from toolkit.bench.allreduce import BACKENDS, JOB, Measured
from toolkit.bench.jobs import FailedRunError, script_of
from toolkit.bench.jobs import run as run_job
from toolkit.bench.scale import statistics as earlier
from toolkit.bench.scale import study
from toolkit.bench.scale.directory import StudyDirectory, read_study
from toolkit.bench.scale.model import Options, Study
from toolkit.bench.scale.report import remarks, series, table, write_reports
from toolkit.cli import console
from toolkit.cli.follow import show_explanation, show_outcome
from toolkit.cli.options import flags, job_options, job_options_except, split_words
from toolkit.cli.shared import Decorator, completion, json_option, options, pattern
from toolkit.config import shipped
from toolkit.errors import RegressionError, UsageError
from toolkit.launchers import offered
from toolkit.runs.logs import Tail
from toolkit.text import is_secret
from toolkit.units import counted, human_time
from toolkit.workshops.exercises import exercises

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
# Options of a job that do not fit a study, or that it has as lists.
_NOT_OURS = (
    *("nodes", "ntasks_per_node", "launcher", "sweep", "array", "requeue", "max_requeues"),
    *("interactive", "pty", "after", "snapshot", "dependency"),
)
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the scripts that would be submitted, and stop."
)


def _bytes(match: re.Match[str]) -> int:
    count = int(match[1]) << _UNITS[match[2].upper()]
    if not count or count % 4:
        raise click.BadParameter(f"{match[0]} is not a multiple of 4 bytes, the size of one number")
    return count


SIZE = pattern("a size", r"(?i)(\d{1,12})\s*([KMG]?)(?:i?B)?", "256M", _bytes)
NUMBERS = pattern(
    "a list of numbers",
    r"[1-9]\d{0,8}(,[1-9]\d{0,8})*",
    "1,2,4",
    lambda match: tuple(dict.fromkeys(map(int, match[0].split(",")))),
)
ARGUMENT = pattern(
    "NAME=NUMBER",
    r"(?:--)?([^=]+)=([1-9]\d{0,17})",
    "batch-size=64",
    lambda match: (match[1], int(match[2])),
)


@click.command("allreduce")
@job_options
@click.option(
    "--backend",
    type=click.Choice(tuple(BACKENDS)),
    multiple=True,
    help="The library to measure; repeatable, one job each. Default auto: nccl if PyTorch can use "
    "GPUs, else gloo.",
)
@click.option(
    "--min-size",
    metavar="SIZE",
    type=SIZE,
    default="1K",
    show_default=True,
    help="The smallest buffer.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    type=SIZE,
    default="256M",
    show_default=True,
    help="The largest buffer.",
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
@_dry_run_option
@json_option
def allreduce(
    backend: tuple[str, ...],
    min_size: int,
    max_size: int,
    factor: int,
    show_buffers: bool,
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
    if max_size < min_size:
        raise UsageError(
            f"the largest buffer is smaller than the smallest, which has {min_size} bytes",
            place="--max-size",
            next_step="--max-size 256M",
        )
    if show_buffers and "nccl-tests" in backend:
        others = "--backend gloo, or leave --show-buffers out"
        raise UsageError("nccl-tests shows no buffers", place="--backend", next_step=others)
    cwd, given = Path.cwd(), dict(flags(options, ()).values)
    say = _show_buffer if show_buffers and not as_json else console.say
    done: list[Measured] = []
    for name in backend or ("auto",):
        script = BACKENDS[name].script  # another one of the job's folder
        target = str(shipped("jobs") / JOB / script) if script else f"jobs/{JOB}"
        adapt = measuring.refusing(name)
        sizes = (min_size, max_size, factor)
        layer = measuring.settings(name, given, sizes, show_buffers=show_buffers)
        if dry_run:
            console.out(script_of(target, layer, cwd, adapt=adapt).rstrip("\n"))
            continue
        ran = run_job(target, layer, cwd, say, adapt=adapt)
        result = measuring.measured(
            name,
            ran.run.plan.shape,
            ran.run.plan.nodes * ran.run.plan.ranks_per_node,
            ran.outcome.results,
            [line.text for line in Tail(ran.run).read(last=True)],
            ran.run.name,
        )
        if result is None or (ran.outcome.kind != "ok" and not result.wrong):
            return show_failed_run(ran)
        done.append(result)
    if done:
        _show_measured(done, as_json=as_json)
    return 1 if any(result.wrong for result in done) else 0


def _show_buffer(subject: str, text: str) -> None:
    """Print a buffer as a result, and any other line as a note."""
    if text.startswith(("before ", "after ")):
        console.out(text)
    else:
        console.say(subject, text)


def show_failed_run(ran: CompletedRun) -> int:
    """Print how a run failed, and return its exit code."""
    show_outcome(ran.outcome, ran.run)
    show_explanation(ran.run)
    return ran.outcome.exit_code or 1


def _show_measured(done: list[Measured], *, as_json: bool) -> None:
    """Print what was measured."""
    header, rows = measuring.table(done)
    lines = [console.table(header, rows)] if rows else []
    for result in done:
        verdict = "every sum is right" if not result.wrong else f"{result.wrong} elements are WRONG"
        best = max((row.bus_gb_per_s for row in result.rows), default=0.0)
        bandwidth = f", {best:.3f} GB/s on the bus at best" if result.rows else ""
        lines.append(f"{result.backend}: {result.shape}, {verdict}{bandwidth}")
    console.result({"measured": done}, "\n".join(lines), as_json=as_json)


complete_jobs = completion(lambda: [f"jobs/{name}" for name in exercises()])


@click.command("compare")
@job_options
@click.option(
    "--arguments",
    metavar="WORDS",
    callback=split_words,
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
@_dry_run_option
@json_option
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
def compare(
    jobs: tuple[str, ...],
    arguments: tuple[str, ...],
    rounds: int,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare trainings: samples per second, memory, accuracy.

    The jobs run one after the other. A job is a folder with a job.toml, or a training script. Speed
    and accuracy are what the script prints in its last line of JSON (samples_per_second, accuracy);
    memory is the most that one process of the script had.

    \b
    Examples:
      toolkit bench compare jobs/digits-dataparallel jobs/digits-ddp jobs/digits-horovod
      toolkit bench compare --gpus 4 --nodes 1 --runs 3 jobs/digits-dataparallel jobs/digits-ddp
    """
    layer = comparing.settings(flags(options, ()).values, arguments)
    if dry_run:
        for job in jobs:
            console.out(script_of(job, layer, Path.cwd()).rstrip("\n"))
        return 0
    try:
        rows = comparing.run(jobs, layer, rounds, Path.cwd(), console.say)
    except FailedRunError as failed:
        return show_failed_run(failed.ran)
    console.listing(*comparing.table(rows), rows, as_json=as_json)
    return 0


@click.command("stage")
@job_options_except(*_NOT_OURS, "stage_image")
@click.option(
    "--nodes",
    "-N",
    type=NUMBERS,
    default="1,2,4",
    show_default=True,
    metavar="N,N",
    help="Numbers of nodes to measure.",
)
@_dry_run_option
@json_option
def stage(nodes: tuple[int, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Measure from how many nodes on a copy of the image on each pays.

    Each number of nodes has three jobs of one rank on each node, which imports the image's
    framework: from the shared file system, with a copy that is made first (--stage-image), and with
    the copy that is there. Nodes that have a copy already make none, and keep in memory what they
    have read: repeat it on other nodes.

    \b
    Examples:
      toolkit bench stage --image pytorch_cuda
      toolkit bench stage --nodes 8,64,256 --partition amd_a100nv_8 --image pytorch_cuda --json
    """
    given = flags(options, ()).values
    if dry_run:
        layer = staging.settings(given, nodes[0], stage_image=True)
        console.out(script_of(staging.PROGRAM, layer, Path.cwd()).rstrip("\n"))
        return 0
    try:
        rows = staging.run(given, nodes, Path.cwd(), console.say)
    except FailedRunError as failed:
        return show_failed_run(failed.ran)
    header = ("NODES", "SHARED", "COPIED", "STAGED")
    lines = [
        [str(row.nodes), *map(human_time, (row.shared, row.copied, row.staged))] for row in rows
    ]
    data = {"rows": rows, "verdict": staging.verdict(rows)}
    console.result(data, f"{console.table(header, lines)}\n{data['verdict']}", as_json=as_json)
    return 0


study_options: Decorator[Any] = options(
    click.option(
        "--nodes",
        "-N",
        type=NUMBERS,
        metavar="N,N",
        help="Numbers of nodes to measure (default 1,2,4).",
    ),
    click.option(
        "--ntasks-per-node",
        type=NUMBERS,
        metavar="N,N",
        help="Ranks on each node; several: each with each number of nodes (default: the job's).",
    ),
    click.option(
        "--launcher",
        "launchers",
        metavar="NAME,NAME",
        callback=lambda _ctx, _param, text: tuple(filter(None, (text or "").split(","))),
        help=f"Launchers to measure (default: the job's): {', '.join(offered())}.",
    ),
    click.option(
        "--weak", is_flag=True, help="The same work for each rank at all sizes (default)."
    ),
    click.option("--strong", is_flag=True, help="The same work in all at all sizes."),
    click.option(
        "--divide",
        type=ARGUMENT,
        metavar="NAME=TOTAL",
        multiple=True,
        callback=lambda _ctx, _param, pairs: dict(pairs),
        help="With --strong: give the script --NAME with the total by the ranks. Repeatable.",
    ),
    click.option(
        "--multiply",
        type=ARGUMENT,
        metavar="NAME=VALUE",
        multiple=True,
        callback=lambda _ctx, _param, pairs: dict(pairs),
        help="With --weak: give the script --NAME with the value times the ranks. Repeatable.",
    ),
    click.option(
        "--runs",
        type=click.IntRange(1, 1000),
        help="How often each point is measured, in turns (default 3).",
    ),
    click.option(
        "--metric",
        metavar="KEY",
        help="The printed key to measure: a rate, or a time if it ends in seconds "
        "(default samples_per_second).",
    ),
    click.option(
        "--arguments",
        metavar="WORDS",
        callback=split_words,
        help="More arguments of the script: --arguments '--epochs 3'.",
    ),
    click.option(
        "--gradient-size",
        metavar="SIZE",
        type=SIZE,
        help="Bytes that ranks add up in a step (default: as the optimizer's parameters have).",
    ),
    click.option(
        "--samples-per-epoch",
        type=click.IntRange(1),
        help="For hours per epoch, if the script prints neither samples_per_epoch nor epochs and "
        "seconds.",
    ),
    click.option(
        "--count-oversubscribed",
        metavar="REASON",
        help="Count points with more ranks than cores for speed-up; the report has the reason.",
    ),
    click.option(
        "--no-hook",
        is_flag=True,
        help="Record no steps in the ranks: no communication share, stragglers and start-up.",
    ),
)


@click.command("scale")
@job_options_except(*_NOT_OURS)
@study_options
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory of the study (default: scale/NAME).",
)
@click.option(
    "--again",
    type=click.Path(exists=True, path_type=Path),
    metavar="REPORT",
    help="Measure the study of this report (report.json or its directory) again.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, path_type=Path),
    metavar="REPORT",
    help="Compare with an earlier report; exit code 98 if a point is slower beyond the noise.",
)
@click.option(
    "--threshold",
    type=click.IntRange(0, 99),
    default=5,
    show_default=True,
    help="With --against: percent of the median below which a change does not count.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the points and the hours they may take, and stop."
)
@json_option
@click.argument("job", required=False, shell_complete=complete_jobs)
def scale(
    job: str | None,
    again: Path | None,
    directory: Path | None,
    against: Path | None,
    threshold: int,
    dry_run: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Measure how a training scales over nodes.

    Each point is a job of `toolkit run`; JOB is a folder with a job.toml, or a training script that
    prints samples_per_second, or the key of --metric. The report has medians with their spread,
    speed-up, efficiency, hours and the share of communication: toolkit docs run/scale explains
    them.

    \b
    Examples:
      toolkit bench scale --dry-run --nodes 1,2,4 jobs/digits-ddp
      toolkit bench scale --nodes 1,2,4 --runs 3 jobs/digits-ddp
      toolkit bench scale --nodes 1,2,4 --strong --divide batch-size=64 jobs/digits-ddp
      toolkit bench scale --nodes 1,2 --launcher torchrun,srun train.py
      toolkit bench scale --again scale/digits-ddp/report.json --directory scale/later
      toolkit bench scale --nodes 1,2 --directory scale/new --against scale/old train.py

    The same command goes on after an interruption: no finished run is lost.
    """
    options = _chosen(job, again, values)
    before = read_study(against) if against else None
    folder = StudyDirectory(directory or Path("scale") / (Path(options.target).stem or "study"))
    planned, origin = study.plan_points(options, Path.cwd(), console.say)
    if dry_run:
        _show_plan(planned, options, as_json=as_json)
        return 0
    with folder.lock():
        try:
            measured = study.measure(
                options,
                planned,
                origin,
                folder,
                Path.cwd(),
                console.say,
                on_sample=lambda so_far: write_reports(so_far, folder),
            )
        except BaseException as error:
            code = show_failed_run(error.ran) if isinstance(error, FailedRunError) else 0
            if folder.study.is_file():
                runs = counted(sum(1 for _ in folder.samples.glob("*.json")), "run")
                console.say("kept", f"{runs} in {folder.path}; the same command goes on")
            if code:
                return code
            raise
        write_reports(measured, folder)
    _show_study(measured, folder, as_json=as_json)
    if before is not None:
        _compare(before, measured, threshold / 100)
    return 0


def _compare(before: Study, study: Study, threshold: float) -> None:
    """Print the changes since an earlier study.

    Raises:
        RegressionError: a point is slower beyond the noise.
    """
    changes = earlier.compare(before, study, threshold)
    console.note(console.table(*earlier.table(changes)))
    for difference in earlier.differences(before, study):
        console.say("differs", difference)
    if any(change.verdict == "too few runs" for change in changes):
        console.say("note", "too few runs show no change; 3 against 3 are the fewest: --runs 3")
    slower = [change for change in changes if change.verdict == "slower"]
    if slower:
        raise RegressionError(
            f"slower by {1 - min(change.ratio for change in slower):.1%}: "
            + "; ".join(change.name for change in slower[:10]),
            place="--against",
            next_step="see what differs above; --threshold PERCENT allows more",
        )


def _chosen(job: str | None, again: Path | None, values: dict[str, Any]) -> Options:
    """Return the options of a new study, or of an earlier one with those that are given now.

    Raises:
        UsageError: not exactly one of them was named.
    """
    if (job is None) == (again is None):
        raise UsageError(
            "name either a job or the report of a study",
            place="JOB",
            next_step="toolkit bench scale jobs/digits-ddp, or --again REPORT",
        )
    own = {name: values.pop(name) for name in Options.__struct_fields__ if name in values}
    given = {name: value for name, value in own.items() if value}
    modes = tuple(mode for mode in ("strong", "weak") if values.pop(mode))
    given |= {"modes": modes} if modes else {}
    given |= {"hook": False} if values.pop("no_hook") else {}
    settings = _job_settings(values)
    if again is None:
        return Options(target=job or "", job=settings, **{"nodes": (1, 2, 4), **given})
    before = read_study(again).options
    return replace(before, **given, job={**before.job, **settings})


def _job_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the job as JSON has them, without secrets: reports are shared."""
    settings = dict(flags(values, ()).values)
    for name, value in settings.get("env", {}).items():
        if is_secret(name, str(value)):
            raise UsageError(
                f"{name} looks like a secret, and would be in the report",
                place=f"--env {name}",
                next_step=f"export {name}, and pass it with --secret {name}",
            )
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _show_plan(planned: Sequence[study.PlannedPoint], options: Options, *, as_json: bool) -> None:
    rows = [
        {
            "point": entry.point.key,
            "nodes": entry.plan.nodes,
            "ranks": entry.plan.nodes * entry.plan.ranks_per_node,
            "launcher": entry.plan.launch.launcher,
            "runs": options.runs,
            "hours": round(entry.hours, 2),
            "unit": entry.unit,
            "arguments": shlex.join(entry.plan.launch.program),
        }
        for entry in planned
    ]
    header = ("POINT", "NODES", "RANKS", "LAUNCHER", "RUNS", "AT MOST", "COMMAND")
    cells = [
        (
            *(row[name] for name in ("point", "nodes", "ranks", "launcher", "runs")),
            f"{row['hours']:g} {row['unit']} h" if row["hours"] else "no limit",
            row["arguments"],
        )
        for row in rows
    ]
    runs, unit = len(planned) * options.runs, planned[0].unit
    total = sum(entry.hours for entry in planned)
    limit = f"{total:.3g} {unit} hours, by the time limits (--time)" if total else "no limit known"
    lines = (
        console.table(header, cells),
        console.subject("jobs", f"{runs}, one after the other, in turns over the points"),
        console.subject("at most", limit),
    )
    console.result(rows, "\n".join(lines), as_json=as_json)


def _show_study(study: Study, folder: StudyDirectory, *, as_json: bool) -> None:
    """Print what a study has measured."""
    lines: list[str] = []
    for entry in series(study):
        lines += [f"{entry.name} scaling", console.table(*table(study, entry))]
        lines += [console.subject("note", remark) for remark in remarks(entry, study)]
    console.result(study, "\n".join(lines), as_json=as_json)
    console.say("report", f"{folder.html}, {folder.json}")
