"""srun: Slurm starts every rank, and the script of the job tells it who it is in the words of torch.distributed.

RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and NODE_RANK are the step's numbers, each only where
nobody set it. How the ranks meet is ``--init``: ``env`` gives MASTER_ADDR and MASTER_PORT, ``tcp``
and ``file`` do not. INIT_METHOD says it in all three, and is filled in for a script that has
``--init-method`` or ``--dist-url``; other options that are filled in are in ``_known``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers import Request
from toolkit.launchers.arguments import MEETING, Known, backend, command
from toolkit.launchers.common import batch_lines, failures_of_step, interface, needs
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """torch must be in the image; a file's path must be one that torch reads out of a URL."""
    findings: list[ToolkitError] = list(needs("torch", "srun", request))
    if request.job.init == "file" and (
        wrong := next((one for one in "#?" if one in request.run_directory), None)
    ):
        findings.append(
            UsageError(
                f"torch.distributed cannot read a file:// address with {wrong!r} in it: {request.run_directory}",
                place="--init",
                next_step="--init env, or run from another directory",
            )
        )
    return findings


def launch(request: Request) -> Launch:
    """One task per rank."""
    return Launch(
        launcher="srun",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        environment={"OMP_NUM_THREADS": str(request.cpus_per_rank), **interface(request)},
        program=command(request, _known(request)),
        init=request.job.init or "env",
    )


def _known(request: Request) -> tuple[Known, ...]:
    meeting = MEETING if (request.job.init or "env") == "env" else MEETING[:1]
    ranks = (
        Known(("rank",), '"$RANK"'),
        Known(("local-rank",), '"$LOCAL_RANK"'),
        Known(("world-size",), '"$WORLD_SIZE"'),
    )
    return (*meeting, *ranks, *backend(request))


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs))
