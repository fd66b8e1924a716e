"""none: the command as it is, in the image: one process, a job array, or a program that is no training at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failures_of_step, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """Nothing is needed of the image."""
    del request
    return ()


def launch(request: Request) -> Launch:
    """One task on each node, or as many as were asked for."""
    command = (request.script,) if request.program else python_command(request)
    return Launch(
        launcher="none",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        environment={"OMP_NUM_THREADS": str(request.cpus_per_rank)},
        program=(*command, *request.arguments),
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs), task="task")
