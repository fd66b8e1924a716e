"""How MPI's ranks find each other under srun: the PMI that Slurm offers (`srun --mpi=list`) and the image's MPI speaks.

Without a common one every rank would believe that it is alone, and say so only by a wrong result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolkit.errors import LauncherMismatchError
from toolkit.launchers import Request

# What an image speaks if nobody knows: Open MPI of the last years speaks PMIx, MPICH PMI2.
_USUAL = ("pmix", "pmi2")
# Slurm's PMIx server and the image's PMIx library must agree on how to authenticate and where data
# lies; the host's munge and shared-memory store are not in the container.
EXPORTS = {"PMIX_MCA_psec": "^munge", "PMIX_MCA_gds": "hash"}


def check(request: Request) -> Sequence[LauncherMismatchError]:
    """A finding where Slurm and the image's MPI have no PMI in common; what nobody knows is let pass."""
    offered = request.facts.mpi
    if offered is None or _common(request) is not None:
        return []
    return [
        LauncherMismatchError(
            f"Slurm here offers {', '.join(offered) or 'no PMI'}, the {request.noun}'s MPI speaks {', '.join(_spoken(request))}",
            place="--launcher",
            next_step="ask the administrator for Slurm's pmix plugin, or use a launcher without MPI (horovod-gloo, torchrun)",
        )
    ]


def chosen(request: Request) -> str:
    """The value of ``srun --mpi``."""
    return _common(request) or _USUAL[0]


def needs_mpi(request: Request, launcher: str) -> Sequence[LauncherMismatchError]:
    """A finding where an image is known to hold no MPI that anything could start."""
    if request.manifest is None or request.manifest.mpi:
        return []
    recipe = ', or add block = "openmpi" to its recipe' if request.noun == "image" else ""
    return [
        LauncherMismatchError(
            f"the launcher {launcher} needs an MPI, which this {request.noun} does not hold",
            place="--launcher",
            next_step=f"choose another {request.noun}{recipe}",
        )
    ]


def parameters(interface: str | None) -> dict[str, str]:
    """Open MPI's own settings: plain TCP for its messages, on the site's interface where that is known.

    No InfiniBand verbs and no hcoll: what the host has of them does not fit what the image has, and
    Horovod's own advice is to leave the heavy traffic to NCCL.
    """
    return {
        "pml": "ob1",
        "btl": "^openib",
        "coll": "^hcoll",
        **({"btl_tcp_if_include": interface} if interface else {}),
    }


def environment(interface: str | None) -> dict[str, str]:
    """The same as variables of the ranks."""
    return {f"OMPI_MCA_{name}": value for name, value in parameters(interface).items()}


def _spoken(request: Request) -> tuple[str, ...]:
    return (request.manifest.mpi if request.manifest else ()) or _USUAL


def _common(request: Request) -> str | None:
    return common(_spoken(request), request.facts.mpi or ())


def common(spoken: Sequence[str], offered: Sequence[str]) -> str | None:
    """The first type that both have: the plain name where Slurm has it, else the newest version of the plugin (``pmix_v4``); None: no one.

    Args:
        spoken: what the image's MPI speaks, best first.
        offered: what ``srun --mpi=list`` says.
    """
    for name in spoken:
        if name in offered:
            return name
        versions = sorted(
            (kind for kind in offered if re.fullmatch(rf"{name}_v\d+", kind)),
            key=_number,
            reverse=True,
        )
        if versions:
            return versions[0]
    return None


def _number(kind: str) -> int:
    return int(kind.rpartition("_v")[2])
