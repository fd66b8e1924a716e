"""srun: Slurm starts every rank, and the script of the job sets the variables of torch.distributed.

RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and NODE_RANK are the step's numbers; a variable that
is already set stays. ``--init`` decides how the ranks meet: ``env`` gives MASTER_ADDR and
MASTER_PORT, ``tcp`` and ``file`` do not. INIT_METHOD has the address in all three, and is filled in
for a script that has ``--init-method`` or ``--dist-url``; ``launch`` names the other options that
are filled in.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers.shared.arguments import MEETING, Argument, backend, command
from toolkit.launchers.shared.base import Launcher, Request
from toolkit.model.plan import Launch

_RANKS = (
    Argument(("rank",), '"$RANK"'),
    Argument(("local-rank",), '"$LOCAL_RANK"'),
    Argument(("world-size",), '"$WORLD_SIZE"'),
)


class Srun(Launcher):
    """Tasks of Slurm as ranks of torch.distributed."""

    summary = (
        "Slurm starts every rank and tells it who it is; for torch.distributed without torchrun"
    )
    framework = "torch.distributed"
    options = ("init",)
    rank_variables = ("RANK", "SLURM_PROCID")

    def check(self, request: Request) -> Sequence[ToolkitError]:
        """Require torch in the image, and a path that torch can read out of a URL."""
        wrong = next((sign for sign in "#?" if sign in request.run_directory), None)
        if request.job.init != "file" or wrong is None:
            return self.require("torch", request)
        return [
            *self.require("torch", request),
            UsageError(
                f"torch.distributed cannot read a file:// address with {wrong!r} in it: "
                f"{request.run_directory}",
                place="--init",
                next_step="--init env, or run from another directory",
            ),
        ]

    def launch(self, request: Request) -> Launch:
        """Start one task for each rank."""
        decided, init = super().launch(request), request.job.init or "env"
        meeting = MEETING if init == "env" else MEETING[:1]
        return replace(
            decided,
            environment={**decided.environment, **request.interface},
            program=command(request, (*meeting, *_RANKS, *backend(request))),
            init=init,
        )


LAUNCHER = Srun()
