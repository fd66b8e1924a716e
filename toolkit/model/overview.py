"""The state of a cluster, and the facts that are collected for its site file.

The state: free resources of each partition, the user's limits and usage, and where a job would
start.
"""

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


class NodeProbe(Model, frozen=True, kw_only=True):
    """The facts that a short job collected on a node of a partition.

    Attributes:
        host: the node.
        gpus: nvidia-smi's name of each GPU.
        driver: version of the NVIDIA driver; empty: there is none.
        interfaces: network interfaces, without the loopback.
        problem: why there are no facts; empty: there are.
    """

    host: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    interfaces: tuple[str, ...] = ()
    problem: str = ""


class Survey(Model, frozen=True, kw_only=True):
    """The facts of a live cluster.

    Attributes:
        slurm: its version.
        cluster: its name, in Slurm's configuration.
        local: it is the cluster of `toolkit cluster up`.
        plugins: of job_submit, whose rules no command prints.
        containers: container commands on PATH.
        modules: names that ``module avail`` lists; None: there is no such command.
        scratch: directory for large files, by an environment variable or by convention; empty:
            there is none.
        limits: by partition, the limits of one user.
        probes: by partition, the facts that a job collected; empty if the user allowed no jobs.
    """

    slurm: str = ""
    cluster: str = ""
    local: bool = False
    plugins: str = ""
    queues: tuple[Queue, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    mpi: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    modules: tuple[str, ...] | None = None
    scratch: str = ""
    limits: dict[str, Limits] = {}
    probes: dict[str, NodeProbe] = {}

    def members(self, queue: Queue) -> tuple[ClusterNode, ...]:
        """Return the nodes of a partition."""
        return tuple(node for node in self.nodes if queue.name in node.partitions)
