"""Two ranks on this machine sum by MPI."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, unchecked
from toolkit.images.verify.together import MPIRUN, two_ranks


def verify(case: Case) -> Answer:
    return (
        unchecked(why)
        if (why := cannot(case))
        else two_ranks(case, MPIRUN, ("horovod", "mpi"), "mpi")
    )


def cannot(case: Case) -> str | None:
    """Why ranks of this image cannot sum by MPI; None: they can."""
    if case.no_python:
        return case.no_python
    if not case.has("horovod"):
        return "no Horovod is in it, by which ranks would sum over MPI"
    if case.controllers is not None and "mpi" not in case.controllers:
        return "its Horovod is built without MPI"
    return None if "mpirun" in case.looked.programs else "no mpirun is in it"
