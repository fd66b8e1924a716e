"""What `--gpus` means: Slurm's option counts the GPUs of a job, ours has always counted those of a node. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from toolkit.errors import UsageError
from toolkit.model.job import Job
from toolkit.model.site import Partition, Site
from toolkit.units import counted


def on_a_node(
    site: Site, partition: Partition | None, name: str | None, gpu_type: str = ""
) -> int | None:
    """Return how many GPUs a node of a partition has, at most; None: not known.

    Args:
        site: whose file is read where Slurm was not asked.
        partition: as Slurm describes it; None: Slurm was not asked.
        name: of the partition; None: unset, and then the site's largest node counts.
        gpu_type: the type that is asked for; empty: any.
    """
    if partition is not None:
        by_type = {key.lower(): count for key, count in partition.gpus_by_type.items()}
        return by_type.get(gpu_type.lower(), partition.gpus)
    if name is not None:
        return site.partitions[name].gpus if name in site.partitions else None
    return max((one.gpus for one in site.partitions.values() if one.batch), default=None)


def resolved(job: Job, has: int | None) -> tuple[Job, tuple[str, ...]]:
    """Return the job with its GPUs on each node, and what to tell the user about `--gpus`.

    Where no node has as many GPUs as `--gpus` says and the nodes can share them evenly, it is the
    number for the job, as in Slurm. Everywhere else it is the number for each node.

    Args:
        job: the merged settings.
        has: how many GPUs a node has; None: not known.

    Raises:
        UsageError: `--gpus` and `--gpus-per-node` contradict each other.
    """
    if job.gpus is None:
        return job, ()
    if job.gpus_per_node is not None:
        _require_consistent(job)
        return job, ()
    if job.gpus_by_node:
        return job, ()
    total, (least, nodes) = job.most_gpus, job.node_range
    kind = f"{job.gpu_type}:" if job.gpu_type else ""
    if (
        has is not None
        and total > has >= total // nodes
        and total % nodes == 0
        and least == nodes > 1
    ):
        share = total // nodes
        text = f"--gpus {job.gpus} is the number for the job, as in Slurm: {share} on each of {nodes} nodes (--gpus-per-node {kind}{share})"
        return replace(job, gpus_per_node=f"{kind}{share}" if kind else share), (text,)
    if nodes == 1 or not total:
        return replace(job, gpus_per_node=job.gpus), ()
    where = f"each of {nodes} nodes, {total * nodes} in all" if least == nodes else "each node"
    text = f"--gpus {job.gpus} gives {total} on {where}; Slurm's --gpus counts per job, --gpus-per-node {job.gpus} is clear to both"
    return replace(job, gpus_per_node=job.gpus), (text,)


def _require_consistent(job: Job) -> None:
    _, nodes = job.node_range
    total = sum(job.gpus_by_node) or job.most_gpus * nodes
    asked = str(job.gpus).rpartition(":")[2]
    kinds = {
        str(text).rpartition(":")[0] for text in (job.gpus, job.gpus_per_node) if ":" in str(text)
    }
    if len(kinds) > 1:
        cause = f"--gpus-per-node {job.gpus_per_node} and --gpus {job.gpus} name two types"
        raise UsageError(cause, place="--gpus", next_step="leave --gpus out")
    if asked != str(total):
        cause = f"--gpus-per-node {job.gpus_per_node} on {counted(nodes, 'node')} gives {total} GPUs, --gpus says {job.gpus}"
        raise UsageError(cause, place="--gpus", next_step="leave --gpus out")
