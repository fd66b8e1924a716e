"""The PMI by which ranks of MPI find each other under srun.

Slurm must offer it, and the image's MPI must support it. Without a common PMI every rank would
believe that it is alone, and the only sign would be a wrong result.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import LauncherMismatchError
from toolkit.launchers.shared.base import Launcher
from toolkit.model.case import Case
from toolkit.slurm.parse import common_mpi_type

# Default for an image whose MPI is not known: recent Open MPI supports PMIx, MPICH PMI2.
_DEFAULT = ("pmix", "pmi2")
# Slurm's PMIx server and the image's PMIx library must agree on how to authenticate and where data
# lies; the host's munge and shared-memory store are not in the container.
EXPORTS = {"PMIX_MCA_psec": "^munge", "PMIX_MCA_gds": "hash"}


def check(case: Case) -> Sequence[LauncherMismatchError]:
    """Return an error if Slurm and the image's MPI share no PMI; if one is not known, none."""
    offered = case.facts.mpi
    if offered is None or _common(case) is not None:
        return []
    return [
        LauncherMismatchError(
            f"Slurm here offers {', '.join(offered) or 'no PMI'}, "
            f"the {case.noun}'s MPI speaks {', '.join(_spoken(case))}",
            place="--launcher",
            next_step="ask the administrator for Slurm's pmix plugin, "
            "or use a launcher without MPI (horovod-gloo, torchrun)",
        )
    ]


def chosen(case: Case) -> str:
    """Return the value of ``srun --mpi``."""
    return _common(case) or _DEFAULT[0]


def require_mpi(launcher: Launcher, case: Case) -> Sequence[LauncherMismatchError]:
    """Return an error if an image is known to hold no MPI, or if a script starts ranks itself."""
    source, script = case.source, case.target.script
    if source.imports_any("mpi4py") and source.calls_any("Spawn", "MPIPoolExecutor"):
        return [
            LauncherMismatchError(
                f"{script} has MPI start processes, which Slurm's PMI does not do, "
                "and mpirun would do outside of the container",
                place="SCRIPT",
                next_step=f"for MPIPoolExecutor: -- python3 -m mpi4py.futures {script}; "
                "in place of Spawn: start all ranks, and split MPI.COMM_WORLD",
            )
        ]
    if case.manifest is None or case.manifest.mpi:
        return []
    recipe = ', or add block = "openmpi" to its recipe' if case.noun == "image" else ""
    return [
        LauncherMismatchError(
            f"the launcher {launcher.name} needs an MPI, which this {case.noun} does not hold",
            place="--launcher",
            next_step=f"choose another {case.noun}{recipe}",
        )
    ]


def parameters(interface: str | None) -> dict[str, str]:
    """Return Open MPI's settings for messages over plain TCP, on the site's interface if known.

    No InfiniBand verbs and no hcoll: the host's versions do not fit the image's, and Horovod's own
    advice is to leave the heavy traffic to NCCL. These values replace those of the image's
    openmpi-mca-params.conf: like Debian's, they exclude ``uct`` and ``ofi``, with which one-sided
    communication aborts. ``osc_rdma`` has no atomics over TCP, so windows are left to UCX.
    """
    return {
        "pml": "ob1",
        "btl": "^uct,openib,ofi",
        "coll": "^hcoll",
        "osc": "^rdma",
        **({"btl_tcp_if_include": interface} if interface else {}),
    }


def environment(interface: str | None) -> dict[str, str]:
    """Return Open MPI's settings as variables of the ranks."""
    return {f"OMPI_MCA_{name}": value for name, value in parameters(interface).items()}


def _spoken(case: Case) -> tuple[str, ...]:
    return (case.manifest.mpi if case.manifest else ()) or _DEFAULT


def _common(case: Case) -> str | None:
    return common_mpi_type(_spoken(case), case.facts.mpi or ())
