"""Run a job: plan it, write its run's directory, submit it once, and wait for its end.

`toolkit run` may be killed, or lose its connection, between sbatch and the record of its job. Then
the next call for the same job takes up that submission.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ConfigError, ImageMissingError, ToolkitError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.run import Outcome, Plan
from toolkit.planning.case import next_directory
from toolkit.planning.plan import decide
from toolkit.runs.run import Run
from toolkit.runs.status import Event, follow, was_never_submitted
from toolkit.runs.submit import fill, is_over, repeatable, reserve, search, submit
from toolkit.shell import Progress
from toolkit.slurm.client import AnswerLostError, Wait

Adapt = Callable[[Case], Case]
_SBATCH_SECONDS = 70.0  # sbatch itself gives up earlier


def unchanged(case: Case) -> Case:
    """Return the case as it is."""
    return case


def fetch_image(case: Case, progress: Progress) -> None:
    """Fetch the image of a registry for a job that could run, as far as is known without the image.

    Raises:
        PlanError: the job could not run; nothing was fetched.
    """
    from toolkit.images.registry import transfer

    decide(case)
    transfer.fetch(case.image.to_fetch, progress)


def write(case: Case, adapt: Adapt = unchanged) -> Run:
    """Plan a run, and write its directory under a number that no other run has.

    Args:
        case: of the plan.
        adapt: changes it for the directory that the run gets; it may be called several times.

    Raises:
        PlanError: it could not run; nothing was written.
        ImageMissingError: the image of a registry has not been fetched.
    """
    while True:
        adapted = adapt(case)
        plan = decide(adapted)
        if case.image.to_fetch:
            name = Path(case.image.path).name.removesuffix(".sif")
            step = f"toolkit image pull {case.image.to_fetch} --name {name}"
            raise ImageMissingError(
                f"{case.image.to_fetch} has not been fetched", place="--image", next_step=step
            )
        if reserve(taken := Path(plan.run_directory)):
            return fill(plan, adapted)
        free = next_directory(taken.parent, taken.name.rsplit("-", 1)[0])
        case = case._replace(run=str(free))


def resume(case: Case, wait: Wait) -> Run | None:
    """Return the run of the same job whose submission was interrupted, if Slurm has its job.

    Any other interrupted run is left to `toolkit ps`. A submission that goes on is waited for.

    Raises:
        AnswerLostError: it does not end.
    """
    for file in sorted(Path(case.run).parent.glob("*/attempt.json")):
        run = Run(file.parent)
        if not _is_same(run, case):
            continue
        wait.notify(
            f"the submission of {run.name} did not end; asking Slurm whether it has the job"
        )
        if not is_over(run, _SBATCH_SECONDS):
            raise AnswerLostError(
                f"{run.name}, the same job, is still being submitted",
                place=str(run.directory),
                next_step="wait for it: toolkit ps",
            )
        if not file.exists():  # another process has submitted it meanwhile
            continue
        if search(run, wait):
            return run
        if was_never_submitted(run):  # it is not looked for any more
            file.unlink()
    return None


def _is_same(run: Run, case: Case) -> bool:
    """Return whether a run is of the same settings and of a script that has not changed since."""
    try:
        if not run.is_own or run.job is None or run.number:
            return False
        plan = decide(case)
        if run.read("job.json", Job) != repeatable(case, plan):
            return False
        # The hash tells nothing of a script that was copied, or is too large for one.
        changed = 0.0 if case.target.is_program else Path(case.script_path).stat().st_mtime
        return run.plan.script_file == plan.script_file and changed <= run.job.began + 1
    except (ConfigError, OSError):
        return False


class CompletedRun(NamedTuple):
    """A run whose job has ended."""

    run: Run
    outcome: Outcome


def complete(
    case: Case,
    wait: Wait,
    *,
    adapt: Adapt = unchanged,
    on_plan: Callable[[Plan], object] = bool,
    on_event: Callable[[Event], object] = bool,
    on_cancel: Callable[[int], object] = bool,
    until: float = math.inf,
) -> CompletedRun:
    """Plan and submit a run, and follow it until its job has ended.

    A job that fails is no error; see ``outcome``.

    Args:
        case: of the plan.
        wait: patience with a Slurm that does not answer the submission.
        adapt: changes the case for the directory that the run gets.
        on_plan: is called with the plan before it is submitted.
        on_event: is called with each event but the outcome.
        on_cancel: is called with the job's id after it was cancelled.
        until: a time of ``time.monotonic``.

    Raises:
        ToolkitError: the run could not be planned, submitted or followed.
        TimeoutError: the job had not ended at ``until``, and was cancelled.
        KeyboardInterrupt: the job was cancelled.
    """
    run = write(case, adapt)
    on_plan(run.plan)
    submit(run, local_name(case.site), wait)
    return await_end(run, on_event=on_event, on_cancel=on_cancel, until=until)


def await_end(
    run: Run,
    *,
    on_event: Callable[[Event], object] = bool,
    on_cancel: Callable[[int], object] = bool,
    until: float = math.inf,
) -> CompletedRun:
    """Follow a run that was submitted until its job has ended; arguments as of ``complete``.

    Raises:
        ToolkitError: it could not be followed; the job was cancelled, as in the other cases.
        TimeoutError: the job had not ended at ``until``.
        KeyboardInterrupt: this process was interrupted.
    """
    try:
        for event in follow(run, until=until):
            if isinstance(event, Outcome):
                return CompletedRun(run, event)
            on_event(event)
    except BaseException:
        with contextlib.suppress(ToolkitError):  # a Slurm that is silent does not cancel either
            run.client.cancel(run.job_id)
            on_cancel(run.job_id)
        raise
    raise AssertionError("a run that is followed ends with an outcome")
