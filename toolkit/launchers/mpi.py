"""mpi: Slurm starts every rank of an MPI program.

Its PMI plugin numbers the ranks for the image's MPI. It serves a script that imports mpi4py, and a
program compiled against the image's MPI.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.launchers.shared import pmi
from toolkit.launchers.shared.base import Launcher, Recognition
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.site import Facts


class Mpi(Launcher):
    """Tasks of Slurm as ranks of MPI."""

    summary = "Slurm starts every rank and PMIx tells it who it is; for any program of MPI"
    needs = frozenset(("pmi",))
    waits_for_failed = True

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts that import mpi4py.

        One that certainly does may have torch.distributed meet by it: under torchrun each of its
        ranks would be alone in MPI.
        """
        if case.target.is_program and case.job.arguments[:2] == ("-m", "mpi4py.futures"):
            return Recognition(-2, "-m mpi4py.futures gives the work of rank 0 to the others")
        if case.source.imports_any("libmpi"):
            return Recognition(-2, "is a program that is linked with MPI")
        if case.source.imports_any("mpi4py"):
            is_certain = case.source.certainly_imports("mpi4py")
            return Recognition(48 if is_certain else 70, "imports mpi4py")
        return None

    def discover(self, case: Case) -> Facts:
        """Ask Slurm for its PMI plugins."""
        return replace(case.facts, mpi=case.client.mpi_types())

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require an MPI in the image, mpi4py if it is imported, and a PMI shared with Slurm."""
        findings: list[ToolkitError] = list(pmi.require_mpi(self, case))
        if case.source.imports_any("mpi4py") and not findings:
            findings += self.require("mpi4py", case)
        return findings or pmi.check(case)

    def launch(self, case: Case) -> Launch:
        """Start one task for each rank."""
        decided = super().launch(case)
        return replace(
            decided,
            mpi=pmi.chosen(case),
            exports=pmi.EXPORTS,
            environment={**decided.environment, **pmi.environment(case.interface)},
            template="horovod",
        )


LAUNCHER = Mpi()
