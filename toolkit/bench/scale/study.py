"""Measure the points of a study, one run after the other, and take up where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import __version__, git
from toolkit.api.run import CompletedRun
from toolkit.bench import jobs
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.measurement import sample
from toolkit.bench.scale.model import Options, Origin, Point, Sample, Study
from toolkit.bench.scale.point_run import adapted, evidence, layer, now, place_hook
from toolkit.bench.scale.points import asked_hours, points, turns
from toolkit.errors import MalformedInputError, ToolkitError
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome
from toolkit.planning.case import gather as gather_case
from toolkit.planning.plan import decide
from toolkit.runs.follow import follow
from toolkit.runs.outcome import finish
from toolkit.runs.run import Run
from toolkit.slurm.client import Client
from toolkit.slurm.failures import configured_wait, patiently


class PlannedPoint(NamedTuple):
    """A point that could run, and the most that its runs take."""

    point: Point
    plan: Plan
    hours: float
    unit: str


def plan_points(options: Options, cwd: Path, say: jobs.Inform) -> tuple[list[PlannedPoint], Origin]:
    """Plan every point, so that one that cannot run is refused before the first is submitted.

    Returns:
        The points, and the software and cluster that they run on.

    Raises:
        ToolkitError: a point could not run, or the options contradict each other.
    """
    planned: list[PlannedPoint] = []
    origin = Origin()
    wait = configured_wait(lambda text: say("waiting", text))
    for point in points(options):
        gather = partial(gather_case, options.target, layer(options, point), cwd)
        case = patiently(gather, wait)
        case = adapted(options, point, case)
        decided = decide(case)
        if not planned:
            origin = _origin(case, patiently(case.client.version, wait))
        hours, unit = asked_hours(decided, case.minutes, options.runs)
        planned.append(PlannedPoint(point, decided, hours, unit))
    return planned, origin


def _origin(case: Case, slurm: str) -> Origin:
    manifest, script = case.manifest, case.script_file
    return Origin(
        image=Path(case.image.path).name,
        image_digest=(manifest.partition or manifest.sif_id) if manifest else "",
        lock=manifest.locked if manifest else "",
        commit=_commit(Path(case.target.folder)),
        script=script.path if script else case.target.script,
        script_sha256=script.sha256 if script else "",
        site=case.site.name,
        slurm=slurm,
        toolkit=__version__,
        began=now(),
    )


def _commit(folder: Path) -> str:
    """Return git's commit of a folder, with ``+`` if tracked files differ; empty without git."""
    tree = git.top(folder)
    state = git.state(tree) if tree else None
    return f"{state.commit}{'+' if state.is_changed else ''}" if state and state.commit else ""


def measure(
    options: Options,
    planned: Sequence[PlannedPoint],
    origin: Origin,
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
    schedule = list(turns(chosen, options.runs))
    missing = [turn for turn in schedule if not directory.sample_file(*turn).is_file()]
    # Runs of an interrupted study come first: their job may still be running.
    missing.sort(key=lambda turn: directory.run_in_progress(*turn) is None)
    plans = {entry.point: entry.plan for entry in planned}
    measuring = Measuring(options, directory, cwd, say, plans)
    with measuring.cancelling():
        for count, (point, number) in enumerate(missing, len(schedule) - len(missing) + 1):
            say("point", f"{count} of {len(schedule)}: {point.key}, run {number}")
            taken = measuring.sample_of(point, number)
            directory.keep(point, taken)
            say("value", f"{options.metric} {taken.value:.6g}")
            on_sample(replace(study, samples=directory.read_samples()))
    return replace(study, samples=directory.read_samples())


class Measuring:
    """The runs that a study lacks, and the jobs in which this process has them done."""

    def __init__(
        self,
        options: Options,
        directory: StudyDirectory,
        cwd: Path,
        say: jobs.Inform,
        plans: Mapping[Point, Plan],
    ) -> None:
        """Begin without a job; ``plans`` are those of the points as they would be submitted now."""
        self._options = options
        self._directory = directory
        self._cwd = cwd
        self._say = say
        self._plans = plans
        self._jobs: dict[int, Client] = {}  # that are cancelled if this process is interrupted

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancel the jobs that were taken up if the block is left early."""
        try:
            yield
        except BaseException:
            for job_id, client in self._jobs.items():
                with suppress(ToolkitError):  # a Slurm that is silent does not cancel either
                    client.cancel(job_id)
                    self._say("cancelled", f"job {job_id}")
            raise

    def sample_of(self, point: Point, number: int) -> Sample:
        """Return the measurement of a run, once it has ended.

        Raises:
            FailedRunError: it failed.
            ToolkitError: it could not be submitted or followed, or printed no metric.
        """
        ran = self._taken_up(point, number)
        if ran is not None:
            with suppress(MalformedInputError):  # of the run before: the metric may be printed now
                return sample(self._options, point, number, evidence(self._options, ran))
            self._directory.pending_file(point, number).unlink(missing_ok=True)
        ran = self._own_job(point, number)
        if ran.outcome.kind != "ok":
            self._directory.pending_file(point, number).unlink(missing_ok=True)
            raise jobs.FailedRunError(ran)
        return sample(self._options, point, number, evidence(self._options, ran))

    def _own_job(self, point: Point, number: int) -> CompletedRun:
        return jobs.run(
            self._options.target,
            layer(self._options, point),
            self._cwd,
            self._say,
            adapt=partial(adapted, self._options, point),
            on_plan=partial(self._note, point, number),
        )

    def _note(self, point: Point, number: int, decided: Plan) -> None:
        place_hook(self._options, decided)
        self._directory.note_run(point, number, decided.run_directory)

    def _leave(self, run: Run, job: JobState | None) -> None:
        """Cancel the job of a run that would not be measured, if it has not ended."""
        if job is not None and not job.ended:
            run.client.cancel(run.job_id)
            text = f"job {run.job_id}: the script, its image or its options have changed"
            self._say("cancelled", text)

    def _taken_up(self, point: Point, number: int) -> CompletedRun | None:
        """Return the run that an earlier process noted, once it has succeeded.

        None if there is none, if Slurm has no job of it, or if it is to be repeated.
        """
        directory = self._directory.run_in_progress(point, number)
        if directory is None:
            return None
        run = Run(directory)
        job = run.state() if run.outcome is None else None
        if job is not None and job.ended:
            finish(run, job)
        if run.job is None or run.job.job_id is None:
            return None
        if _measured(run.plan) != _measured(self._plans[point]):
            self._leave(run, job)
            return None
        outcome = run.outcome or (self._followed(run, job) if job else None)
        return CompletedRun(run, outcome) if outcome and outcome.kind == "ok" else None

    def _followed(self, run: Run, job: JobState) -> Outcome:
        self._say("resumed", f"{run.name}: job {run.job_id} is {job.state.lower()}")
        self._jobs[run.job_id] = run.client
        for event in follow(run):
            if isinstance(event, Outcome):
                del self._jobs[run.job_id]
                return event
            jobs.report(event, self._say)
        raise AssertionError("a run that is followed ends with an outcome")


def _measured(plan: Plan) -> tuple[object, ...]:
    """Return what two runs of one point have in common if they measure the same."""
    shape = (plan.nodes, plan.ranks_per_node, plan.gpus_per_node)
    return (*shape, plan.launch, plan.container, plan.script_file)
