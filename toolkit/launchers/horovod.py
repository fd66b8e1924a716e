"""horovod: Slurm starts every rank, and its PMI plugin tells the image's MPI who is who. No ssh, no mpirun.

It serves scripts of every framework that the image's Horovod was built for. ``--mpi`` is chosen in
``pmi``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request, built, pmi
from toolkit.launchers.common import batch_lines, failures_of_step, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """Horovod with MPI must be in the image, and Slurm must offer a PMI that the image's MPI speaks."""
    return [*built.check(request, "horovod", "mpi"), *pmi.check(request)]


def launch(request: Request) -> Launch:
    """One task per rank."""
    interface = request.site.interface
    return Launch(
        launcher="horovod",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        mpi=pmi.chosen(request),
        exports=pmi.EXPORTS,
        environment={
            "OMP_NUM_THREADS": str(request.cpus_per_rank),
            **pmi.environment(interface),
            **({"NCCL_SOCKET_IFNAME": interface} if interface else {}),
        },
        program=(*python_command(request), *request.arguments),
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs))
