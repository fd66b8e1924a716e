"""Time limits: of the partition as Slurm tells it, of the partition and the site as they are written; the first that is broken.

Who waits in an allocation has less at some sites.
"""

from __future__ import annotations

from toolkit.errors import ShapeError
from toolkit.preflight.model import Case, Finding
from toolkit.units import counted


def look(case: Case) -> list[Finding]:
    name = f"partition {case.partition_name}"
    waiting = case.site.interactive_minutes if case.job.interactive else None
    limits = (
        (name, case.partition.max_minutes if case.partition else None, "sinfo"),
        (name, case.written.max_minutes if case.written else None, case.source),
        (f"site {case.site.name}", case.site.max_minutes, case.source),
        (f"site {case.site.name}, to those who wait in an allocation,", waiting, case.source),
    )
    for who, limit, source in limits:
        if case.minutes is not None and limit is not None and case.minutes > limit:
            cause = f"{who} gives {counted(limit, 'minute')} at most, {case.minutes} were asked for"
            return [Finding(ShapeError(cause, place="--time", next_step=f"--time {limit}"), source)]
    return []
