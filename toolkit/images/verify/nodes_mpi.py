"""Ranks on several nodes sum by MPI, started by Slurm."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, unchecked
from toolkit.images.verify.ranks_mpi import cannot


def verify(case: Case) -> Answer:
    return (
        unchecked(why) if (why := cannot(case)) else case.meet("horovod", ("horovod", "mpi"), "mpi")
    )
