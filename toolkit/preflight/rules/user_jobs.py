"""Jobs that one user may have in a partition: so many queued, and so many running."""

from __future__ import annotations

import re

from toolkit.errors import ShapeError
from toolkit.model.site import Use
from toolkit.preflight.model import Case, Finding
from toolkit.units import counted


def look(case: Case) -> list[Finding]:
    name, most, running = case.partition_name, case.limits.jobs_submitted, case.limits.jobs_running
    mine, adds = case.facts.mine.get(name, Use()), elements(case.job.array)
    if most is not None and mine.submitted + adds > most:
        cause = f"one user may have {counted(most, 'job')} in {name}; you have {mine.submitted}, and this would be {adds} more"
        return [
            Finding(
                ShapeError(
                    cause,
                    place="--partition",
                    next_step="wait for one to end, or another partition",
                ),
                case.limits.source,
            )
        ]
    if running is not None and mine.running >= running:
        cause = f"one user may have {running} running jobs in {name}, and you have {mine.running}: this one waits for one of them"
        return [
            Finding(
                ShapeError(cause, place="--partition", next_step="toolkit cluster show"),
                case.limits.source,
                stops=False,
            )
        ]
    return []


def elements(array: str | int | None) -> int:
    """How many jobs a value of ``--array`` makes: 10 for ``0-9%2``, 1 where there is none or it is no such value."""
    total = 0
    for part in str(array if array is not None else 0).partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match:
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            total += len(range(first, last + 1, step or 1))
    return max(total, 1)
