"""As many GPUs as a node has. What Slurm itself says goes before what is written."""

from __future__ import annotations

from toolkit.errors import ShapeError
from toolkit.preflight.model import Case, Finding
from toolkit.sites.gpu_types import resolve
from toolkit.units import counted


def look(case: Case) -> list[Finding]:
    asked = case.job.most_gpus
    has, kind, source = _has(case)
    if has is None or asked <= has:
        return []
    least = f"{case.job.gpu_type}:{has}" if case.job.gpu_type else has
    number = f"{counted(has, 'GPU')}{kind}"
    verb = "was" if asked == 1 else "were"
    cause = f"a node of partition {case.partition_name} has {number}, {asked} {verb} asked for"
    step = _elsewhere(case, asked) or f"{case.job.gpu_option} {least}"
    return [Finding(ShapeError(cause, place=case.job.gpu_option, next_step=step), source)]


def _has(case: Case) -> tuple[int | None, str, str]:
    if case.partition is not None:
        wanted = resolve(case.job, case.site, case.facts, case.partition)
        kind = wanted.name if wanted.error is None and wanted.name else case.partition.gpu_type
        count = case.partition.gpus_by_type.get(kind or "", case.partition.gpus)
        return count, f" ({kind})" if kind else "", "sinfo"
    if case.written is not None:
        return case.written.gpus, f" ({case.written.gpu})" if case.written.gpu else "", case.source
    return None, "", ""


def _elsewhere(case: Case, asked: int) -> str:
    """The partitions that have nodes with so many."""
    live = [partition.name for partition in case.facts.partitions if partition.gpus >= asked]
    written = [
        name for name, one in case.site.partitions.items() if one.gpus >= asked and one.batch
    ]
    names = ", ".join(live if case.partition is not None else written)
    return f"with as many: {names}" if names else ""
