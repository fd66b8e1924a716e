"""Ranks on all nodes sum by MPI, and how fast."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case
from toolkit.doctor.together import summed
from toolkit.images.verify import nodes_mpi


def check(case: Case) -> Answer:
    return summed(case, nodes_mpi.verify, "mpi")
