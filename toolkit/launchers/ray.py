"""ray: a program of ours on each node starts Ray there, they meet, and the first node runs the script, once.

Ray's own ``ray symmetric-run`` is not used. It refuses to start where another Ray is on the node,
and at its end kills by name, maybe another job's; it ends with 0 where Ray did not start; and its
other nodes stay for a minute after the script has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failures_of_step, interface, needs, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """Ray must be in the image."""
    return needs("ray", "ray", request)


def launch(request: Request) -> Launch:
    """One task per node, and Ray has all that it is given of CPUs and GPUs. How many workers there are is the script's business."""
    cpus = request.cpus_per_rank * request.ranks_per_node
    return Launch(
        launcher="ray",
        reason=request.reason,
        ntasks_per_node=1,
        cpus_per_task=cpus,
        environment={
            # Nobody but this job gives work to its Ray; versions that do not know of tokens have no
            # such lock.
            "RAY_AUTH_MODE": "token",
            # What is done and said is the job's alone.
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray announces a change of its own there, in every task.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # Logs are files, not terminals.
            "RAY_COLOR_PREFIX": "0",
            **interface(request),
        },
        options=(str(cpus), str(request.job.most_gpus), request.site.interface or ""),
        program=(*python_command(request), *request.arguments),
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed: the first node's with the script's exit code, others because Ray ended."""
    return failures_of_step(batch_lines(logs), task="task")
