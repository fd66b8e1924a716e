"""Task ids of job arrays as Slurm writes them: ``0-3,7`` or ``0-8:4%2``. Pure."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def expand(text: str) -> list[int]:
    """Return the task ids that a value of ``--array`` or of squeue names.

    The limit of simultaneous tasks after ``%`` and brackets around the ids are left out.
    """
    ids: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match:
            ids += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return ids
