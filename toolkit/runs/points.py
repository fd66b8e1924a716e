"""How the elements of a job array came out, each by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.model.plan import Plan
from toolkit.model.run import JobState
from toolkit.model.ways import PointOutcome
from toolkit.runs.logs import Line
from toolkit.runs.outcome import outcome
from toolkit.ways import requeue


def outcomes(plan: Plan, lines: Sequence[Line], states: dict[int, JobState], expected: Sequence[int]) -> tuple[PointOutcome, ...]:
    """How the elements came out, as far as they have ended.

    Args:
        plan: of the run.
        lines: every line of every log.
        states: element -> what Slurm says of it.
        expected: the elements that the array has; those of which Slurm says nothing yet wait in one entry of its queue.
    """
    found = []
    for number in sorted({*states, *expected}):
        state = states.get(number)
        own = [line for line in lines if line.element == number]
        if state is None or not state.ended:
            found.append(PointOutcome(number=number, state=state.state if state else "PENDING"))
            continue
        came_out = outcome(plan, state, requeue.last(own) if plan.requeue else own, {})
        found.append(
            PointOutcome(
                number=number,
                state=came_out.state,
                exit_code=came_out.exit_code,
                seconds=came_out.seconds,
                results=came_out.results,
                message=came_out.message,
            )
        )
    return tuple(found)
