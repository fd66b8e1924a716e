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
from toolkit.launchers.shared.arguments import MEETING, Argument, backend, command, launcher
from toolkit.launchers.shared.base import SHELLS, Launcher, Recognition, sockets
from toolkit.launchers.shared.trainers import (
    environment,
    lightning_findings,
    srun_reason,
    uses_torch_distributed,
)
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.source import Source

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

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts whose trainer wants a task of Slurm for each device.

        A program of an image with torch may be a trainer, too: each of its ranks gets its number.
        """
        has_torch = case.manifest is not None and "torch" in case.manifest.frameworks
        is_program = case.target.is_program and case.target.name not in SHELLS
        if is_program and has_torch and case.ranks > 1:
            return Recognition(-1, f"is a program, and the {case.noun} holds torch")
        reason = srun_reason(case)
        return Recognition(45, reason) if reason else None

    def is_used_by(self, source: Source) -> bool:
        """Return whether a script uses torch.distributed, by itself or through a trainer."""
        return uses_torch_distributed(source)

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require torch in the image, and a path that torch can read out of a URL."""
        findings = [*self.require("torch", case), *lightning_findings(case)]
        wrong = next((sign for sign in "#?" if sign in case.run), None)
        if case.job.init != "file" or wrong is None:
            return findings
        return [
            *findings,
            UsageError(
                f"torch.distributed cannot read a file:// address with {wrong!r} in it: {case.run}",
                place="--init",
                next_step="--init env, or run from another directory",
            ),
        ]

    def launch(self, case: Case) -> Launch:
        """Start one task for each rank."""
        decided, init = super().launch(case), case.job.init or "env"
        meeting = MEETING if init == "env" else MEETING[:1]
        return replace(
            decided,
            environment={
                **decided.environment,
                **environment(case),
                **sockets(case, "GLOO", "NCCL"),
            },
            program=command(case, (*meeting, *_RANKS, *backend(case), *launcher(case, "slurm"))),
            init=init,
        )


LAUNCHER = Srun()
