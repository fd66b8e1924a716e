"""GPUs that one user may have in a partition at a time. Slurm keeps a job that asks for more waiting for ever."""

from __future__ import annotations

from toolkit.errors import ShapeError
from toolkit.preflight.model import Case, Finding
from toolkit.units import counted


def look(case: Case) -> list[Finding]:
    limit, name = case.limits.gpus, case.partition_name
    asked = sum(case.job.gpus_by_node) or case.job.most_gpus * case.job.node_range[0]
    if limit is None or not asked:
        return []
    if asked > limit:
        cause = f"one user may have {counted(limit, 'GPU')} in {name}, {asked} were asked for"
        return [
            Finding(
                ShapeError(cause, place="--nodes", next_step="fewer nodes, or another partition"),
                case.limits.source,
            )
        ]
    used = case.facts.mine[name].gpus if name in case.facts.mine else 0
    if used + asked <= limit:
        return []
    cause = f"one user may have {counted(limit, 'GPU')} in {name}; your running jobs have {used}, so that {asked} more have to wait"
    return [
        Finding(
            ShapeError(cause, place="--nodes", next_step="toolkit cluster show"),
            case.limits.source,
            stops=False,
        )
    ]
