"""horovod: Slurm starts every rank, and its PMI plugin tells the image's MPI who is who. No ssh, no mpirun.

``--mpi`` is chosen from what Slurm offers (`srun --mpi=list`) and what the image's MPI speaks; without a common one every rank would
believe that it is alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failure_of_step, needs, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

# What an image speaks if nobody knows: Open MPI of the last years speaks PMIx, MPICH PMI2.
_USUAL = ("pmix", "pmi2")


def check(request: Request) -> Sequence[ToolkitError]:
    """Horovod must be in the image, and Slurm must offer a PMI that the image's MPI speaks."""
    findings: list[ToolkitError] = list(needs("horovod", "horovod", request.manifest.frameworks if request.manifest else None))
    offered = request.facts.mpi
    if offered is not None and _common(request) is None:
        findings.append(
            LauncherMismatchError(
                f"Slurm here offers {', '.join(offered) or 'no PMI'}, the image's MPI speaks {', '.join(_spoken(request))}",
                place="--launcher",
                next_step="ask the administrator for Slurm's pmix plugin, or use --launcher torchrun",
            )
        )
    return findings


def launch(request: Request) -> Launch:
    """One task per rank."""
    interface = request.site.interface
    return Launch(
        launcher="horovod",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        mpi=_common(request) or _USUAL[0],
        # Slurm's PMIx server and the image's PMIx library must agree on how to authenticate and where data lies; the host's
        # munge and shared-memory store are not in the container.
        exports={"PMIX_MCA_psec": "^munge", "PMIX_MCA_gds": "hash"},
        environment={
            "OMP_NUM_THREADS": str(request.cpus_per_rank),
            # Horovod's own advice: plain TCP for MPI's control messages, no InfiniBand verbs or hcoll from the host's point of view.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "^openib",
            "OMPI_MCA_coll": "^hcoll",
            **({"OMPI_MCA_btl_tcp_if_include": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
        },
        program=(*python_command(request.script), *request.arguments),
    )


def first_failure(logs: Iterable[tuple[str, Sequence[str]]]) -> Failure | None:
    """What srun said of the first task that failed."""
    return failure_of_step(batch_lines(logs))


def _spoken(request: Request) -> tuple[str, ...]:
    return (request.manifest.mpi if request.manifest else ()) or _USUAL


def _common(request: Request) -> str | None:
    """The first type that both speak: the plain name where Slurm has it, else the newest version of the plugin (``pmix_v4``)."""
    offered = request.facts.mpi or ()
    for name in _spoken(request):
        if name in offered:
            return name
        versions = sorted((kind for kind in offered if re.fullmatch(rf"{name}_v\d+", kind)), reverse=True)
        if versions:
            return versions[0]
    return None
