"""Some partition of the site fits, where the job names none and the cluster's default is not known."""

from __future__ import annotations

from toolkit.errors import ShapeError
from toolkit.model.site import SitePartition
from toolkit.preflight.model import Case, Finding
from toolkit.preflight.rules.size import count
from toolkit.units import counted


def look(case: Case) -> list[Finding]:
    partitions = [one for one in case.site.partitions.values() if one.batch]
    if case.partition_name or not partitions or any(_fits(case, one) for one in partitions):
        return []
    gpus, (nodes, _) = case.job.most_gpus, case.job.node_range
    cause = f"no partition of site {case.site.name} has {counted(nodes, 'node')}"
    cause += f" with {counted(gpus, 'GPU')} each" if gpus else ""
    most = max(one.gpus for one in partitions)
    place, step = (
        (case.job.gpu_option, f"{case.job.gpu_option} {most}")
        if gpus > most
        else ("--nodes", f"toolkit site show {case.site.name}")
    )
    return [Finding(ShapeError(cause, place=place, next_step=step), case.source)]


def _fits(case: Case, partition: SitePartition) -> bool:
    job, nodes = case.job, count(partition.nodes)
    cpus = (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)
    return (
        job.most_gpus <= partition.gpus
        and (nodes is None or job.node_range[0] <= nodes)
        and (partition.memory is None or (case.memory or 0) <= partition.memory)
        and (partition.cpus is None or cpus <= partition.cpus)
    )
