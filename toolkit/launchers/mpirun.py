"""mpirun: the host's (or a module's) Open MPI starts the ranks in the allocation, each in its container. No ssh: Slurm starts its daemons.

For scripts of Horovod over MPI, for any program of MPI, and for sites whose srun speaks no PMI that
the image's MPI knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolkit.errors import LauncherMismatchError, NeedsInstallError, ToolkitError
from toolkit.launchers import Request, built, pmi
from toolkit.launchers.common import batch_lines, failed, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

_OPEN_MPI = re.compile(r"Open MPI\)? (\d+)\.(\d+)")
_TRIED = (("5", "4"),)  # of the host, of the image: ranks of 4.1.4 under mpirun 5.0.7, over PMIx
_NOTICED = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)"
)
# Open MPI 4: [[25134,1],1], and 5: [prterun-nid001-681@1,1].
_NAMED = re.compile(r"Process name: \[(?:\[\d+,\d+\]|[^\s\[\]]+@\d+),(?P<rank>\d+)\]")
_CODE = re.compile(r"Exit code:\s+(?P<code>\d+)")
_ABORTED = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+)")
_ERROR_CODE = re.compile(r"with errorcode (?P<code>\d+)")


def check(request: Request) -> Sequence[ToolkitError]:
    """An Open MPI must be on the nodes, an MPI in the image, and where the script is Horovod's, a Horovod with MPI."""
    if request.source.imports_any("horovod"):
        findings: list[ToolkitError] = list(built.check(request, "mpirun", "mpi"))
    else:
        findings = list(pmi.needs_mpi(request, "mpirun"))
    said = request.facts.mpirun
    if said is None and not request.site.modules:
        findings.append(
            NeedsInstallError(
                "there is no mpirun on PATH, and the site names no module that brings one",
                place="--launcher mpirun",
                next_step="--launcher horovod or mpi does without it; or load the site's Open MPI; on Debian: apt-get install openmpi-bin",
            )
        )
    elif said and not _OPEN_MPI.search(said):
        findings.append(
            LauncherMismatchError(
                f"mpirun here is not Open MPI's: {said}",
                place="--launcher mpirun",
                next_step="load the site's Open MPI, or use --launcher mpi",
            )
        )
    return findings


def launch(request: Request) -> Launch:
    """Slurm gives a slot for each rank, mpirun fills them. It binds no rank to a core: that is Slurm's business, and the user's."""
    interface = request.site.interface
    parameters = {
        **pmi.parameters(interface),
        **({"oob_tcp_if_include": interface} if interface else {}),
    }
    shape = (
        "-n",
        str(request.nodes * request.ranks_per_node),
        "--map-by",
        f"ppr:{request.ranks_per_node}:node",
        "--bind-to",
        "none",
    )
    return Launch(
        launcher="mpirun",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        # What a site's Slurm starts by default is for ranks; mpirun starts its daemons with it, and
        # brings a PMIx of its own.
        exports={**pmi.EXPORTS, "SLURM_MPI_TYPE": "none"},
        environment={
            "OMP_NUM_THREADS": str(request.cpus_per_rank),
            **({"NCCL_SOCKET_IFNAME": interface} if interface else {}),
        },
        program=(*python_command(request), *request.arguments),
        options=(
            *shape,
            *(word for name, value in parameters.items() for word in ("--mca", name, value)),
        ),
        warnings=_warnings(request),
    )


def _warnings(request: Request) -> tuple[str, ...]:
    """Open MPI promises that ranks find a daemon of the same major version; of others, what was tried is known."""
    outside = _OPEN_MPI.search(request.facts.mpirun or "")
    inside = _OPEN_MPI.search(built.said_of("openmpi", request.manifest) or "")
    if (
        outside is None
        or inside is None
        or outside[1] == inside[1]
        or (outside[1], inside[1]) in _TRIED
    ):
        return ()
    return (
        f"mpirun here is Open MPI {outside[1]}.{outside[2]}, "
        f"the {request.noun} has {inside[1]}.{inside[2]}: ranks may not find it; "
        "--launcher horovod or mpi does without the host's",
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the ranks that mpirun says failed. Of an exit code it tells the rank only; where that ran, its log tells.

    A rank that calls MPI_Abort is named for that first, and the same code is told of it again.
    """
    lines = batch_lines(logs)
    return [
        failure
        for index, line in enumerate(lines)
        if (failure := _failure(line, lines[index + 1 : index + 4]))
    ]


def _failure(line: str, following: Sequence[str]) -> Failure | None:
    noticed = _NOTICED.search(" ".join((line, *following[:1])))  # mpirun 5 wraps its lines
    if noticed:
        return failed(128 + int(noticed["signal"]), int(noticed["rank"]), noticed["host"])
    for first, then in ((_NAMED, _CODE), (_ABORTED, _ERROR_CODE)):
        named = first.search(line)
        code = (
            next((match for other in following if (match := then.search(other))), None)
            if named
            else None
        )
        if named and code:
            return failed(int(code["code"]), int(named["rank"]), None)
    return None
