"""The MPI types of ``srun --mpi``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence


def common(spoken: Sequence[str], offered: Sequence[str]) -> str | None:
    """Return the first PMI type that an MPI speaks and Slurm offers; None if there is none.

    That is the plain name if Slurm has it, else the newest version of its plugin (``pmix_v4``).

    Args:
        spoken: what the image's MPI speaks, best first.
        offered: what ``srun --mpi=list`` prints.
    """
    for name in spoken:
        if name in offered:
            return name
        versions = [kind for kind in offered if re.fullmatch(rf"{name}_v\d+", kind)]
        if versions:
            return max(versions, key=lambda kind: int(kind.rpartition("_v")[2]))
    return None
