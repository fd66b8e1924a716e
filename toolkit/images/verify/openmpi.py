"""The image's MPI can be started by Slurm: what Open MPI says that it speaks."""

from __future__ import annotations

from toolkit.images.build.buildlog import Results
from toolkit.images.verify.case import Answer, Case, at, failed, passed, unchecked


def verify(case: Case) -> Answer:
    programs = case.looked.programs
    promised = case.image.manifest.mpi if case.image.manifest else ()
    if "ompi_info" not in programs:
        if promised:
            return failed(
                f"its manifest says that its MPI speaks {', '.join(promised)}, and there is no Open MPI in it"
            )
        return unchecked(
            "MPICH is in it, of which nothing is known here"
            if "mpichversion" in programs
            else "no MPI is in it"
        )
    result, results = case.inside.run(["sh", at("checks/openmpi.sh")]), Results()
    for line in result.stdout.splitlines():
        results.feed(line)
    case.mpi = tuple(results.mpi)
    lost = [kind for kind in promised if kind not in results.mpi]
    if not result.ok or lost:
        return failed(
            f"it does not speak {', '.join(lost)}, which its manifest says"
            if result.ok
            else (result.stdout.strip() or "?").splitlines()[-1]
        )
    return passed(result.stdout.strip().splitlines()[-1])
