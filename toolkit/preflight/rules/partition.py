"""The partition takes batch jobs, and is up."""

from __future__ import annotations

from toolkit.errors import UsageError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    name, found = case.partition_name, []
    if case.written is not None and not case.written.batch:
        others = ", ".join(other for other, one in case.site.partitions.items() if one.batch)
        error = UsageError(
            f"{name} takes no batch jobs",
            place="--partition",
            next_step=f"one of {others}" if others else None,
        )
        found.append(Finding(error, case.source))
    if case.partition is not None and not case.partition.available:
        error = UsageError(
            f"{name} is switched off for now", place="--partition", next_step="toolkit cluster show"
        )
        found.append(Finding(error, "sinfo", stops=False))
    return found
