"""What `--gpus` means: Slurm's option counts the GPUs of a job, ours has always counted those of a node. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from toolkit.errors import UsageError
from toolkit.model.job import Job
from toolkit.model.site import Partition, Site
from toolkit.units import counted


def on_a_node(site: Site, partition: Partition | None, name: str | None) -> int | None:
    """Return how many GPUs a node of a partition has, at most; None: not known.

    Args:
        site: whose file is read where Slurm was not asked.
        partition: as Slurm describes it; None: Slurm was not asked.
        name: of the partition; None: unset, and then the site's largest node counts.
    """
    if partition is not None:
        return partition.gpus
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
    total, (least, nodes) = int(job.gpus), job.node_range
    if (
        has is not None
        and total > has >= total // nodes
        and total % nodes == 0
        and least == nodes > 1
    ):
        share = total // nodes
        text = f"--gpus {total} is the number for the job, as in Slurm: {share} on each of {nodes} nodes (--gpus-per-node {share})"
        return replace(job, gpus_per_node=share), (text,)
    if nodes == 1 or not total:
        return replace(job, gpus_per_node=total), ()
    where = f"each of {nodes} nodes, {total * nodes} in all" if least == nodes else "each node"
    text = f"--gpus {total} gives {total} on {where}; Slurm's --gpus counts per job, --gpus-per-node {total} is clear to both"
    return replace(job, gpus_per_node=total), (text,)


def _require_consistent(job: Job) -> None:
    _, nodes = job.node_range
    total = sum(job.gpus_by_node) or job.most_gpus * nodes
    if str(job.gpus) != str(total):
        cause = f"--gpus-per-node {job.gpus_per_node} on {counted(nodes, 'node')} gives {total} GPUs, --gpus says {job.gpus}"
        raise UsageError(cause, place="--gpus", next_step="leave --gpus out")
