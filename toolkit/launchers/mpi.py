"""mpi: any program of MPI in the image, started by Slurm, whose PMI plugin tells the image's MPI who is who: a script that imports mpi4py,
a program compiled against the image's MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request, pmi
from toolkit.launchers.common import batch_lines, failures_of_step, needs, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """An MPI must be in the image, mpi4py where the script imports it, and Slurm must offer a PMI that this MPI speaks."""
    findings: list[ToolkitError] = list(pmi.needs_mpi(request, "mpi"))
    if request.source.imports_any("mpi4py") and not findings:
        findings += needs("mpi4py", "mpi", request)
    return findings or pmi.check(request)


def launch(request: Request) -> Launch:
    """One task per rank."""
    return Launch(
        launcher="mpi",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        mpi=pmi.chosen(request),
        exports=pmi.EXPORTS,
        environment={
            "OMP_NUM_THREADS": str(request.cpus_per_rank),
            **pmi.environment(request.site.interface),
        },
        program=(*python_command(request), *request.arguments),
        template="horovod",
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs))
