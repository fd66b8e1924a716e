"""Get the runs of a study done: each as a job, or all in one allocation; taken up or submitted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from toolkit.api.run import CompletedRun
from toolkit.bench import jobs
from toolkit.bench.scale import allocation
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.measurement import sample
from toolkit.bench.scale.model import Options, Point, Sample
from toolkit.bench.scale.parts import Part
from toolkit.bench.scale.point_run import adapted, evidence, layer, place_hook
from toolkit.errors import MalformedInputError, ToolkitError, UsageError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome
from toolkit.planning.case import gather
from toolkit.runs.finish import finish
from toolkit.runs.follow import follow
from toolkit.runs.run import Run
from toolkit.runs.submit import submit
from toolkit.slurm.client import Client
from toolkit.slurm.patience import configured_wait, patiently
from toolkit.units import counted

_MOST_PARTS = 1000  # runs of one allocation: each has a directory before the first begins

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
        missing: Sequence[Turn],
        plans: Mapping[Point, Plan],
    ) -> None:
        """Begin without a job.

        Args:
            missing: the runs, in their order.
            plans: of each point, as it would be submitted now.
        """
        self._options = options
        self._directory = directory
        self._cwd = cwd
        self._say = say
        self._missing = missing
        self._plans = plans
        self._allocated: set[Turn] = set()
        self._jobs: dict[int, Client] = {}  # that are cancelled if this process is interrupted

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancel the jobs that were taken up or share an allocation if the block is left early."""
        try:
            yield
        except jobs.FailedRunError:
            raise  # it ends its allocation
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
        if ran is not None and (point, number) not in self._allocated:
            with suppress(MalformedInputError):  # of the run before: the metric may be printed now
                return sample(self._options, point, number, evidence(self._options, ran))
            self._directory.pending_file(point, number).unlink(missing_ok=True)
            ran = None
        if ran is None and self._options.one_allocation:
            self._allocate()
            ran = self._taken_up((point, number))
        if ran is None:
            ran = self._own_job(point, number)
        if ran.outcome.kind != "ok":
            if not ran.run.plan.is_part:  # the others of its allocation are noted as well
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
        run = Part(directory) if run.plan.is_part else run
        job = run.state() if run.outcome is None else None
        if job is not None and job.ended:
            finish(run, job)
        if run.job is None or run.job.job_id is None:
            return None
        if turn not in self._allocated and not _is_same(run.plan, self._plans[turn[0]]):
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
        """Return the noted run once it has ended; None if there is none, or it must be repeated.

        A failed run of an earlier process is repeated, but not one of this process's allocation.
        """
        state = self._state(turn)
        if state is None or not (state.is_useful or turn in self._allocated):
            return None
        outcome = state.run.outcome or self._followed(state, is_new=turn in self._allocated)
        if outcome.kind != "ok" and turn not in self._allocated:
            return None
        return CompletedRun(state.run, outcome)

    def _followed(self, state: _RunState, *, is_new: bool) -> Outcome:
        run = state.run
        if not is_new and state.job is not None:
            self._say("resumed", f"{run.name}: job {run.job_id} is {state.job.state.lower()}")
        self._jobs[run.job_id] = run.client
        for event in follow(run):
            if isinstance(event, Outcome):
                if not run.plan.is_part:
                    del self._jobs[run.job_id]
                return event
            jobs.report(event, self._say)
        raise AssertionError("a run that is followed ends with an outcome")

    def _allocate(self) -> None:
        """Submit one job for all runs that are neither measured nor under way."""
        states = {turn: self._state(turn) for turn in self._unmeasured()}
        turns = [turn for turn, state in states.items() if not (state and state.is_useful)]
        if len(turns) > _MOST_PARTS:
            cause = f"{len(turns)} runs are too many for one allocation; the limit is {_MOST_PARTS}"
            step = "measure some first: fewer --runs, then the same command with more"
            raise UsageError(cause, place="--one-allocation", next_step=step)
        wait = configured_wait(lambda text: self._say("waiting", text))
        cases = {
            point: patiently(partial(self._gather, point), wait)
            for point in dict.fromkeys(point for point, _ in turns)
        }
        whole, written = allocation.write_allocation(
            [(cases[point], partial(adapted, self._options, point)) for point, _ in turns]
        )
        for (point, number), run in zip(turns, written, strict=True):
            self._discard(states[point, number])
            self._note(point, number, run.plan)
        job_id = submit(whole, local_name(cases[turns[0][0]].site), wait)
        for run in written:
            run.record(job_id)
        self._jobs[job_id] = whole.client
        self._allocated.update(turns)
        nodes, runs = counted(whole.plan.nodes, "node"), counted(len(turns), "run")
        text = f"{whole.name}: {runs} take turns on {nodes}, job {job_id}"
        self._say("allocation", text)

    def _gather(self, point: Point) -> Case:
        return gather(self._options.target, layer(self._options, point), self._cwd)

    def _unmeasured(self) -> list[Turn]:
        return [turn for turn in self._missing if not self._directory.sample_file(*turn).is_file()]

    def _discard(self, state: _RunState | None) -> None:
        """Remove the directory of a run that never began, as its allocation had ended."""
        if state and isinstance(state.run, Part) and state.run.times is None:
            shutil.rmtree(state.run.directory)


def _is_same(before: Plan, now: Plan) -> bool:
    """Return whether a run measures the point as it would be submitted now."""
    return _measured(before) == _measured(now)


def _measured(plan: Plan) -> tuple[object, ...]:
    shape = (plan.nodes, plan.ranks_per_node, plan.gpus_per_node)
    return (*shape, plan.launch, plan.container, plan.script_file)
