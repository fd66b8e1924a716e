"""horovod-gloo: Slurm starts every rank, Gloo carries their messages, and one small server tells them where the others are.

No MPI, no ssh, no horovodrun. The server is Horovod's own; it runs in the image on the first node
and ends with the batch script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request, built
from toolkit.launchers.common import batch_lines, failures_of_step, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """Horovod with Gloo must be in the image."""
    return built.check(request, "horovod-gloo", "gloo")


def launch(request: Request) -> Launch:
    """One task per rank."""
    return Launch(
        launcher="horovod-gloo",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        environment={**environment(request), "HOROVOD_GLOO_TIMEOUT_SECONDS": "300"},
        program=(*python_command(request), *request.arguments),
    )


def environment(request: Request) -> dict[str, str]:
    """Variables that make Horovod use Gloo, on the site's interface where that is known.

    Half a minute is Horovod's own patience with ranks that come late, less than a cold start from a
    busy file system may take: whoever can afford it waits longer, by HOROVOD_GLOO_TIMEOUT_SECONDS.
    """
    interface = request.site.interface
    return {
        "OMP_NUM_THREADS": str(request.cpus_per_rank),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
    }


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs))
