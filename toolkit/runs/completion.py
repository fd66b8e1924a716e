"""Run a job to its end, and cancel it if this process stops before."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome
from toolkit.records.store import Paths
from toolkit.runs.follow import Event, follow
from toolkit.runs.submit import Adapt, submit, unchanged, write
from toolkit.slurm.patience import Wait


class CompletedRun(NamedTuple):
    """A run whose job has ended."""

    paths: Paths
    plan: Plan
    job_id: int
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
    paths, plan = write(case, adapt)
    on_plan(plan)
    job_id = submit(paths, plan, case.client, local_name(case.site), wait).job_id
    try:
        for event in follow(case.client, paths, plan, job_id, until=until):
            if isinstance(event, Outcome):
                return CompletedRun(paths, plan, job_id, event)
            on_event(event)
    except BaseException:
        with contextlib.suppress(ToolkitError):  # a Slurm that is silent does not cancel either
            case.client.cancel(job_id)
            on_cancel(job_id)
        raise
    raise AssertionError("a run that is followed ends with an outcome")
