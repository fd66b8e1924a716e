"""How the elements of a job array came out, each by its own state and its own logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.model.plan import Plan
from toolkit.model.run import JobState
from toolkit.model.ways import PointOutcome
from toolkit.planning import arrays as sweep
from toolkit.records.store import Log, Paths
from toolkit.runs import excerpt
from toolkit.runs.outcome import CANCELLED, outcome, results


def read(
    paths: Paths,
    plan: Plan,
    job_id: int,
    states: Mapping[int, JobState],
    past: excerpt.History,
    *,
    ended: bool,
) -> tuple[PointOutcome, ...]:
    """Read how each element came out, one at a time, so that only one element's logs are in memory.

    Args:
        paths: of the run.
        plan: of the run.
        job_id: Slurm's number of the array.
        states: element -> Slurm's state of it, as far as Slurm tells.
        past: the attempts of each element.
        ended: the array has ended, so that an element without a state has either never started or is forgotten.
    """
    logs = by_element(paths, job_id)
    numbers = sorted({*states, *sweep.numbers(dict(plan.directives).get("array"))})
    return tuple(
        _point(
            paths, plan, job_id, number, states.get(number), logs.get(number, ()), past, ended=ended
        )
        for number in numbers
    )


def by_element(paths: Paths, job_id: int) -> dict[int | None, list[Log]]:
    """Group the logs of an array by element."""
    found: dict[int | None, list[Log]] = {}
    for log in paths.logs_of(job_id):
        found.setdefault(log.element, []).append(log)
    return found


def _point(
    paths: Paths,
    plan: Plan,
    job_id: int,
    number: int,
    state: JobState | None,
    logs: Sequence[Log],
    past: excerpt.History,
    *,
    ended: bool,
) -> PointOutcome:
    if state is not None and state.ended:
        reports = excerpt.reports_of(paths, job_id, number, past)
        came_out = outcome(plan, state, excerpt.of_logs(paths, plan, logs, past).lines, {}, reports)
        return PointOutcome(
            number=number,
            state=came_out.state,
            exit_code=came_out.exit_code,
            seconds=came_out.seconds,
            results=came_out.results,
            message=came_out.message,
        )
    if not ended:
        return PointOutcome(number=number, state=state.state if state else "PENDING")
    if not logs:
        return PointOutcome(
            number=number, state="CANCELLED", exit_code=CANCELLED, message="it never started"
        )
    printed = excerpt.of_logs(paths, plan, logs, past).lines
    return PointOutcome(
        number=number,
        state="UNKNOWN",
        results=results(printed),
        message="Slurm no longer knows how it ended",
    )
