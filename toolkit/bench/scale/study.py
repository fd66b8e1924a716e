"""Measure the points of a study, one run after the other, and take up where it was interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import __version__, git
from toolkit.api.run import CompletedRun, await_end
from toolkit.bench import jobs
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.measurement import RankFile, sample
from toolkit.bench.scale.model import Options, Point, Sample, Study
from toolkit.errors import MalformedInputError
from toolkit.files import read_text
from toolkit.model.base import BadDataError, from_json
from toolkit.model.case import Case
from toolkit.model.run import Plan
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.runs.logs import Tail
from toolkit.runs.run import Run
from toolkit.slurm.client import PATIENCE, Wait, patiently

_RECORDS = "scale"  # of a run's directory: a file for each process
_MOST_BYTES = 16 << 20  # of a rank's file
_MOST_LINES = 200_000  # that are kept of a run, of those with a measured value


class PlannedPoint(NamedTuple):
    """A point that could run, and the most that its runs take.

    Attributes:
        hours: of GPUs or cores; 0: unknown, as the partition has the time limit.
        unit: ``GPU`` or ``core``.
    """

    point: Point
    plan: Plan
    hours: float
    unit: str


def plan_points(
    options: Options, cwd: Path, say: jobs.Inform
) -> tuple[list[PlannedPoint], dict[str, str]]:
    """Plan every point, so that one that cannot run is refused before the first is submitted.

    Returns:
        The points, and the software and cluster that they run on.

    Raises:
        ToolkitError: a point could not run, or the options contradict each other.
    """
    planned: list[PlannedPoint] = []
    origin: dict[str, str] = {}
    wait = Wait(PATIENCE, lambda text: say("waiting", text))
    for point in options.points():
        case = patiently(partial(gather, options.target, layer(options, point), cwd), wait)
        case = adapted(options, point, case)
        plan = decide(case)
        if not planned:
            origin = _origin(case, patiently(case.client.version, wait))
        amount = plan.gpus_per_node or plan.ranks_per_node * plan.cpus_per_rank
        hours = plan.nodes * amount * options.runs * (case.minutes or 0) / 60
        unit = "GPU" if plan.gpus_per_node else "core"
        planned.append(PlannedPoint(point, plan, hours, unit))
    return planned, origin


def _origin(case: Case, slurm: str) -> dict[str, str]:
    manifest, script = case.manifest, case.script_file
    tree = git.top(Path(case.target.folder))
    state = git.state(tree) if tree else None
    commit = state.commit if state else ""
    return {
        "image": Path(case.image.path).name,
        "image digest": (manifest.partition or manifest.sif_id) if manifest else "",
        "lock": manifest.locked if manifest else "",
        "script": script.path if script else case.target.script,
        "script SHA-256": script.sha256 if script else "",
        "commit": f"{commit}+" if state and commit and state.is_changed else commit,
        "site": case.site.name,
        "Slurm": slurm,
        "toolkit": __version__,
        "began": now(),
    }


def now() -> str:
    """Return the present time: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def layer(options: Options, point: Point) -> Layer:
    """Return the settings of the job at a point, without arguments that depend on its ranks."""
    values = {**options.job, "nodes": point.nodes}
    values.setdefault("job_name", f"scale-{Path(options.target).stem}"[:60])
    if point.ntasks_per_node:
        values["ntasks_per_node"] = point.ntasks_per_node
    if point.launcher:
        values["launcher"] = point.launcher
    if options.arguments:
        values["arguments"] = options.arguments
    return Layer("bench scale", values)


def adapted(options: Options, point: Point, given: Case) -> Case:
    """Return the case of a run with the arguments for its ranks, and with the hook. Pure."""
    planned = decide(given)
    words = options.scaled_arguments(point.mode, planned.nodes * planned.ranks_per_node)
    env = dict(given.job.env)
    if options.hook:
        env["TOOLKIT_SCALE"] = f"{given.run}/{_RECORDS}"
        env |= {"TOOLKIT_SCALE_BYTES": str(options.gradient_size)} if options.gradient_size else {}
    job = replace(given.job, arguments=(*given.job.arguments, *words), env=env)
    return given._replace(job=job)


def measure(
    options: Options,
    planned: Sequence[PlannedPoint],
    origin: dict[str, str],
    directory: StudyDirectory,
    cwd: Path,
    say: jobs.Inform,
    on_sample: Callable[[Study], object] = bool,
) -> Study:
    """Measure all points that are not measured yet.

    Args:
        on_sample: called with the study after each measurement, to write its report.

    Raises:
        FailedRunError: a run failed.
        ToolkitError: one could not be submitted or followed, or printed no metric.
        KeyboardInterrupt: the job in progress was cancelled; all finished ones are kept.
    """
    chosen = [entry.point for entry in planned]
    study = directory.begin(options, origin, chosen)
    # All points once, then all again: a machine that gets slower meanwhile slows every point.
    turns = [(point, number) for number in range(1, options.runs + 1) for point in chosen]
    missing = [turn for turn in turns if not directory.sample_file(*turn).is_file()]
    # Runs of an interrupted study come first: their job may still be running.
    missing.sort(key=lambda turn: directory.run_in_progress(*turn) is None)
    plans = {entry.point: entry.plan for entry in planned}
    for count, (point, number) in enumerate(missing, len(turns) - len(missing) + 1):
        say("point", f"{count} of {len(turns)}: {point.key}, run {number}")
        taken = None
        if ran := _taken_up(directory.run_in_progress(point, number), plans[point], say):
            with suppress(MalformedInputError):  # of the run before: the metric may be printed now
                taken = _sample(options, point, number, ran)
        if taken is None:
            directory.pending_file(point, number).unlink(missing_ok=True)
            taken = _measure_run(options, directory, (point, number), cwd, say)
        directory.keep(point, taken)
        say("value", f"{options.metric} {taken.value:.6g}")
        on_sample(replace(study, samples=directory.read_samples()))
    return replace(study, samples=directory.read_samples())


def _measure_run(
    options: Options,
    directory: StudyDirectory,
    turn: tuple[Point, int],
    cwd: Path,
    say: jobs.Inform,
) -> Sample:
    """Run a point, and return its measurement.

    Raises:
        FailedRunError: it failed.
        ToolkitError: it could not be submitted or followed, or printed no metric.
    """
    point, number = turn

    def prepare(plan: Plan) -> None:
        if options.hook:
            jobs.place_hook(plan, _RECORDS)
        directory.note_run(point, number, plan.run_directory)

    adapt = partial(adapted, options, point)
    settings = layer(options, point)
    ran = jobs.run(options.target, settings, cwd, say, adapt=adapt, on_plan=prepare)
    if ran.outcome.kind != "ok":
        directory.pending_file(point, number).unlink(missing_ok=True)
        raise jobs.FailedRunError(ran)
    return _sample(options, point, number, ran)


def _taken_up(directory: Path | None, plan: Plan, say: jobs.Inform) -> CompletedRun | None:
    """Return the run that an earlier process noted, once it has succeeded.

    None if there is none, if Slurm has no job of it, or if it is to be repeated.

    Args:
        directory: of the run; None: none was noted.
        plan: of the point as it would be submitted now.
        say: called for each event.
    """
    run = Run(directory) if directory else None
    if run is None or run.job is None or run.job.job_id is None:
        return None
    job = run.state() if run.outcome is None else None
    if _comparable(run.plan) != _comparable(plan):
        if job is not None and not job.ended:
            run.client.cancel(run.job_id)
            text = f"job {run.job_id}: the script, its image or its options have changed"
            say("cancelled", text)
        return None
    if job is not None:
        say("resumed", f"{run.name}: job {run.job_id} is {job.state.lower()}")
        await_end(
            run,
            on_event=lambda event: jobs.report(event, say),
            on_cancel=lambda job_id: say("cancelled", f"job {job_id}"),
        )
    outcome = run.outcome
    return CompletedRun(run, outcome) if outcome and outcome.kind == "ok" else None


def _comparable(plan: Plan) -> tuple[object, ...]:
    """Return what two runs of one point have in common if they measure the same."""
    shape = (plan.nodes, plan.ranks_per_node, plan.gpus_per_node)
    return (*shape, plan.launch, plan.container, plan.script_file)


def _sample(options: Options, point: Point, number: int, ran: CompletedRun) -> Sample:
    """Measure a run that has succeeded, by what it printed and recorded."""
    run, outcome = ran
    lines = (line for line in Tail(run).read(last=True) if options.metric in line.text)
    # All nodes of a local cluster are one machine.
    is_local = run.job is not None and run.job.cluster is not None
    measured = sample(
        options,
        point,
        number,
        name=run.name,
        plan=run.plan,
        results=outcome.results,
        lines=list(islice(lines, _MOST_LINES)),
        files=list(_records(run.directory / _RECORDS)),
        cores=(os.cpu_count() or 1) if is_local else 0,
    )
    return replace(measured, nodelist=outcome.nodes, job_id=run.job_id, ended=now())


def _records(directory: Path) -> Iterator[RankFile]:
    """Yield what ranks have recorded, but for one that was killed while it wrote."""
    for path in sorted(directory.glob("*.json")):
        with suppress(OSError, UnicodeDecodeError, BadDataError):
            yield from_json(read_text(path, _MOST_BYTES), RankFile)
