"""A cluster as it is now: what is free in each partition, what a user may have and has, and where a job would start."""

from __future__ import annotations

from toolkit.model.base import Model
from toolkit.model.site import Limits, Use


class Live(Model, frozen=True, kw_only=True):
    """A node as ``scontrol`` shows it.

    Attributes:
        state: ``idle``, ``mixed``, ``full``, or ``down`` for every way in which no job can start there.
        gpus, gpus_used: how many it has, and how many of them jobs have.
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
    """A partition's own settings.

    Attributes:
        nodes: as Slurm writes them.
        max_minutes, default_minutes, max_nodes: None: no limit, or no default.
        qos: the quality of service whose limits hold for everybody there; empty: none.
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
    """When a job would start in a partition, as Slurm guesses, or why it would not.

    Attributes:
        at: in the cluster's time, ISO 8601; empty: never.
        nodes: where.
        refused: Slurm's words.
    """

    at: str = ""
    nodes: str = ""
    refused: str = ""


class Standing(Model, frozen=True, kw_only=True):
    """A partition now.

    Attributes:
        gpu: what its GPUs are called; of a mixed partition all kinds.
        gpus_per_node: of the node with the most.
        idle, mixed, full, down: nodes in each state.
        gpus, gpus_free: on nodes that are not down.
        limits, use: what the user may have, and has.
        start: where a shape was asked for.
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
