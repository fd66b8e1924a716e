"""GPUs of a type that the partition has. What Slurm itself says goes before what is written."""

from __future__ import annotations

from toolkit.preflight.model import Case, Finding
from toolkit.sites.gpu_types import resolve


def look(case: Case) -> list[Finding]:
    error = resolve(case.job, case.site, case.facts, case.partition).error
    source = case.source if case.partition is None else "sinfo"
    return [Finding(error, source)] if error is not None else []
