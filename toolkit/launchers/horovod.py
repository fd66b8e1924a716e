"""horovod: Slurm starts every rank, and its PMI plugin numbers the ranks for the image's MPI.

There is no ssh and no mpirun. It serves scripts of every framework that
the image's Horovod was built for. ``shared/pmi.py`` chooses ``--mpi``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.launchers.shared import horovod_build, pmi
from toolkit.launchers.shared.base import Launcher, Recognition, sockets
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.site import Facts


class Horovod(Launcher):
    """Tasks of Slurm as ranks of Horovod over MPI."""

    summary = "Slurm starts every rank and PMIx tells it who it is; for Horovod over MPI"
    needs = frozenset(("pmi",))
    substitute = "horovod-gloo"
    framework = "horovod"

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts that import horovod."""
        if case.source.imports_any("horovod"):
            return Recognition(20, "imports horovod")
        return None

    def discover(self, case: Case) -> Facts:
        """Ask Slurm for its PMI plugins."""
        return replace(case.facts, mpi=case.client.mpi_types())

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require Horovod with MPI in the image, and a PMI that Slurm and the image's MPI share."""
        return [*horovod_build.check(self, case, "mpi"), *pmi.check(case)]

    def launch(self, case: Case) -> Launch:
        """Start one task for each rank."""
        decided = super().launch(case)
        return replace(
            decided,
            mpi=pmi.chosen(case),
            exports=pmi.EXPORTS,
            environment={
                **decided.environment,
                **pmi.environment(case.interface),
                **sockets(case, "NCCL"),
            },
        )


LAUNCHER = Horovod()
