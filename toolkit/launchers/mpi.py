"""mpi: Slurm starts every rank of an MPI program.

Its PMI plugin numbers the ranks for the image's MPI. It serves a script that imports mpi4py, and a
program compiled against the image's MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.launchers.shared import pmi
from toolkit.launchers.shared.base import Launcher, Recognition, Request, Script
from toolkit.model.plan import Launch
from toolkit.model.site import Facts

if TYPE_CHECKING:
    from toolkit.slurm.client import Client


class Mpi(Launcher):
    """Tasks of Slurm as ranks of MPI."""

    summary = "Slurm starts every rank and PMIx tells it who it is; for any program of MPI"
    needs = frozenset(("pmi",))
    waits_for_failed = True

    def recognize(self, script: Script) -> Recognition | None:
        """Claim scripts that import mpi4py.

        One that certainly does may have torch.distributed meet by it: under torchrun each of its
        ranks would be alone in MPI.
        """
        if script.is_program and script.job.arguments[:2] == ("-m", "mpi4py.futures"):
            return Recognition(-2, "-m mpi4py.futures gives the work of rank 0 to the others")
        if script.source.imports_any("libmpi"):
            return Recognition(-2, "is a program that is linked with MPI")
        if script.source.imports_any("mpi4py"):
            is_certain = script.source.certainly_imports("mpi4py")
            return Recognition(48 if is_certain else 70, "imports mpi4py")
        return None

    def discover(self, facts: Facts, client: Client) -> Facts:
        """Ask Slurm for its PMI plugins."""
        return replace(facts, mpi=client.mpi_types())

    def check(self, request: Request) -> Sequence[ToolkitError]:
        """Require an MPI in the image, mpi4py if it is imported, and a PMI shared with Slurm."""
        findings: list[ToolkitError] = list(pmi.require_mpi(self, request))
        if request.source.imports_any("mpi4py") and not findings:
            findings += self.require("mpi4py", request)
        return findings or pmi.check(request)

    def launch(self, request: Request) -> Launch:
        """Start one task for each rank."""
        decided = super().launch(request)
        return replace(
            decided,
            mpi=pmi.chosen(request),
            exports=pmi.EXPORTS,
            environment={**decided.environment, **pmi.environment(request.site.interface)},
            template="horovod",
        )


LAUNCHER = Mpi()
