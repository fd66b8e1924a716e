"""Get the runs of a study done, each as a job: taken up from an earlier process, or submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from toolkit.api.run import CompletedRun
from toolkit.bench import jobs
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.measurement import sample
from toolkit.bench.scale.model import Options, Point, Sample
from toolkit.bench.scale.point_run import adapted, evidence, layer, place_hook
from toolkit.errors import MalformedInputError, ToolkitError
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome
from toolkit.runs.finish import finish
from toolkit.runs.follow import follow
from toolkit.runs.run import Run
from toolkit.slurm.client import Client

Turn = tuple[Point, int]


class _RunState(NamedTuple):
    """A run that an earlier process submitted, as Slurm has its job now."""

    run: Run
    job: JobState | None

    @property
    def is_useful(self) -> bool:
        """Return whether it has succeeded, or may still."""
        outcome = self.run.outcome
        return self.job is not None if outcome is None else outcome.kind == "ok"


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
        ran = self._taken_up((point, number))
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

    def _state(self, turn: Turn) -> _RunState | None:
        """Return the state of a noted run; None if there is none, or Slurm has no job of it."""
        directory = self._directory.run_in_progress(*turn)
        if directory is None:
            return None
        run = Run(directory)
        job = run.state() if run.outcome is None else None
        if job is not None and job.ended:
            finish(run, job)
        if run.job is None or run.job.job_id is None:
            return None
        if not _is_same(run.plan, self._plans[turn[0]]):
            self._leave(run, job)
            return None
        return _RunState(run, job)

    def _leave(self, run: Run, job: JobState | None) -> None:
        """Cancel the job of a run that would not be measured, if it has not ended."""
        if job is not None and not job.ended:
            run.client.cancel(run.job_id)
            text = f"job {run.job_id}: the script, its image or its options have changed"
            self._say("cancelled", text)

    def _taken_up(self, turn: Turn) -> CompletedRun | None:
        """Return the noted run once it has succeeded; None if there is none, or it is repeated."""
        state = self._state(turn)
        if state is None or not state.is_useful:
            return None
        outcome = state.run.outcome or self._followed(state)
        return CompletedRun(state.run, outcome) if outcome.kind == "ok" else None

    def _followed(self, state: _RunState) -> Outcome:
        run = state.run
        if state.job is not None:
            self._say("resumed", f"{run.name}: job {run.job_id} is {state.job.state.lower()}")
        self._jobs[run.job_id] = run.client
        for event in follow(run):
            if isinstance(event, Outcome):
                del self._jobs[run.job_id]
                return event
            jobs.report(event, self._say)
        raise AssertionError("a run that is followed ends with an outcome")


def _is_same(before: Plan, now: Plan) -> bool:
    """Return whether a run measures the point as it would be submitted now."""
    return _measured(before) == _measured(now)


def _measured(plan: Plan) -> tuple[object, ...]:
    shape = (plan.nodes, plan.ranks_per_node, plan.gpus_per_node)
    return (*shape, plan.launch, plan.container, plan.script_file)
