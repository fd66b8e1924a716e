"""Slurm can start the image's MPI: both speak one PMI."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked
from toolkit.launchers.shared.pmi import common


def verify(case: Case) -> Answer:
    if not case.mpi:
        return unchecked("no MPI is in it of which is known what it speaks")
    if case.site is None or case.site.mpi is None:
        return unchecked(case.no_site)
    offered, spoken = ", ".join(case.site.mpi) or "none", ", ".join(case.mpi)
    found = common(case.mpi, case.site.mpi)
    return (
        passed(f"srun --mpi={found}")
        if found
        else failed(f"Slurm offers {offered}, the image's MPI speaks {spoken}")
    )
