"""Decide whether `--gpus` counts the GPUs of a job, as Slurm's, or of each node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from toolkit.errors import ToolkitError, UsageError
from toolkit.model.job import Job
from toolkit.model.site import Partition, Site
from toolkit.units import counted


def on_a_node(
    site: Site, partition: Partition | None, name: str | None, gpu_type: str = ""
) -> int | None:
    """Return how many GPUs a node of a partition has, at most; None: not known.

    Args:
        site: whose file is read if Slurm was not called.
        partition: as Slurm describes it; None: Slurm was not called.
        name: of the partition; None: unset, and then the site's largest node counts.
        gpu_type: the type that is asked for; empty: any.
    """
    if partition is not None:
        by_type = {key.lower(): count for key, count in partition.gpus_by_type.items()}
        return by_type.get(gpu_type.lower(), partition.gpus)
    if name is not None:
        return site.partitions[name].gpus if name in site.partitions else None
    return max((entry.gpus for entry in site.partitions.values() if entry.batch), default=None)


def resolved(job: Job, has: int | None) -> tuple[Job, tuple[str, ...]]:
    """Return the job with its GPUs on each node, and a note for the user on what `--gpus` means.

    If no node has as many GPUs as `--gpus` says and the nodes can share them evenly, it is the
    number for the job, as in Slurm. Otherwise it is the number for each node.

    Args:
        job: the merged settings.
        has: how many GPUs a node has; None: not known.
    """
    if job.gpus is None or job.gpus_per_node is not None or job.gpus_by_node:
        return job, ()
    total, (least, nodes) = job.most_gpus, job.node_range
    share, rest = divmod(total, nodes)
    if has is not None and total > has >= share and rest == 0 and least == nodes > 1:
        per_node = f"{job.gpu_type}:{share}" if job.gpu_type else share
        note = (
            f"--gpus {job.gpus} is the number for the job, as in Slurm: "
            f"{share} on each of {nodes} nodes (--gpus-per-node {per_node})"
        )
        return replace(job, gpus_per_node=per_node), (note,)
    if nodes == 1 or not total:
        return replace(job, gpus_per_node=job.gpus), ()
    where = f"each of {nodes} nodes, {total * nodes} in all" if least == nodes else "each node"
    note = (
        f"--gpus {job.gpus} gives {total} on {where}; "
        f"Slurm's --gpus counts per job, --gpus-per-node {job.gpus} has one meaning in both"
    )
    return replace(job, gpus_per_node=job.gpus), (note,)


def findings(job: Job) -> Iterator[ToolkitError]:
    """Yield an error if `--gpus` and `--gpus-per-node` contradict each other."""
    if job.gpus is None or job.gpus_per_node is None:
        return
    _, nodes = job.node_range
    total = sum(job.gpus_by_node) or job.most_gpus * nodes
    per_node, all_gpus = str(job.gpus_per_node), str(job.gpus)
    types = {text.rpartition(":")[0] for text in (all_gpus, per_node) if ":" in text}
    if len(types) > 1:
        cause = f"--gpus-per-node {per_node} and --gpus {all_gpus} name two types of GPU"
        yield UsageError(cause, place="--gpus", next_step="leave --gpus out")
    elif all_gpus.rpartition(":")[2] != str(total):
        cause = (
            f"--gpus-per-node {per_node} on {counted(nodes, 'node')} gives {total} GPUs, "
            f"--gpus asks for {all_gpus}"
        )
        yield UsageError(cause, place="--gpus", next_step="leave --gpus out")
