"""The state of a cluster: its partitions and nodes, and where a job would start."""

from __future__ import annotations

from toolkit.model.base import Model
from toolkit.model.site import Limits, Use


class ClusterNode(Model, frozen=True, kw_only=True):
    """A node as ``scontrol`` shows it.

    Attributes:
        state: ``idle``, ``mixed``, ``full``, or ``down`` for every state in which no job can start
            there.
        gpus, gpus_used: all GPUs, and those of them that are allocated to jobs.
        memory: in MB.
    """

    name: str
    partitions: tuple[str, ...]
    state: str
    cpus: int = 0
    memory: int = 0
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    arch: str = ""


class Queue(Model, frozen=True, kw_only=True):
    """The settings of a partition.

    Attributes:
        nodes: as Slurm writes them.
        max_minutes, default_minutes, max_nodes: None: no limit, or no default.
        qos: the quality of service whose limits apply to all users of the partition; empty: none.
    """

    name: str
    default: bool = False
    up: bool = True
    nodes: str = ""
    max_minutes: int | None = None
    default_minutes: int | None = None
    max_nodes: int | None = None
    qos: str = ""


class Start(Model, frozen=True, kw_only=True):
    """Slurm's estimate of a job's start in a partition, or its refusal.

    Attributes:
        at: in the cluster's time, ISO 8601; empty: never.
        nodes: the nodes that it would get.
        refused: Slurm's message.
    """

    at: str = ""
    nodes: str = ""
    refused: str = ""


class PartitionState(Model, frozen=True, kw_only=True):
    """A partition now.

    Attributes:
        gpu: the model of its GPUs; all models if there are several.
        gpus_per_node: of the node with the most.
        idle, mixed, full, down: number of nodes in each state.
        gpus, gpus_free: on nodes that are not down.
        limits, use: the user's limits and usage.
        start: the estimate for a job's shape; None if no shape was given.
    """

    queue: Queue
    gpu: str = ""
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    idle: int = 0
    mixed: int = 0
    full: int = 0
    down: int = 0
    gpus: int = 0
    gpus_free: int = 0
    limits: Limits = Limits()
    use: Use = Use()
    start: Start | None = None
