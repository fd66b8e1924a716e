"""shell: a program at the user's own terminal, on the first node of the job; the others wait for what is started there by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failures_of_step, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """There must be a terminal."""
    if request.job.interactive and request.job.pty:
        return ()
    return (
        UsageError(
            "the launcher shell is for a terminal", place="--launcher", next_step="toolkit shell"
        ),
    )


def launch(request: Request) -> Launch:
    """One task for the job's share of each node; only that of the first node is started."""
    command = (request.script,) if request.program else python_command(request)
    return Launch(
        launcher="shell",
        reason=request.reason,
        ntasks_per_node=1,
        cpus_per_task=request.cpus_per_rank * request.ranks_per_node,
        environment={"OMP_NUM_THREADS": str(request.cpus_per_rank)},
        program=(*command, *request.arguments),
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed, if its words were kept."""
    return failures_of_step(batch_lines(logs), task="task")
