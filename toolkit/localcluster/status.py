"""What there is of a cluster: its nodes as Slurm sees them and as they are, its partitions, its daemons, its logs."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import CommandFailedError
from toolkit.files import read_json
from toolkit.localcluster.access import access, all_up, must_run
from toolkit.localcluster.control import ask
from toolkit.localcluster.paths import paths_of
from toolkit.localcluster.plan import Plan, Power, Request
from toolkit.localcluster.shape import all_nodes, partitions_of
from toolkit.localcluster.states import NodeState, node_states

__all__ = ["NodeStatus", "PartitionStatus", "Status", "all_up", "status"]


@dataclass(frozen=True)
class NodeStatus:
    """A node. Memory in MB; ``power`` is how it is, ``state`` what Slurm knows of it."""

    name: str
    state: str
    reason: str
    power: Power
    cpus: int
    memory: int
    gpus: int
    gpu_type: str | None
    address: str


@dataclass(frozen=True)
class PartitionStatus:
    """A partition; None is no limit."""

    name: str
    default: bool
    nodes: str
    max_nodes: int | None
    max_time: str | None


@dataclass(frozen=True)
class Status:
    """A cluster that is up. ``controller`` and ``accounting_answers`` tell whether those daemons run."""

    name: str
    up: bool
    controller: bool
    accounting: bool
    nodes: tuple[NodeStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    directory: str
    logs: str
    slurm_conf: str
    shared: tuple[str, ...]


def status(name: str) -> Status:
    """The cluster ``name``.

    Raises:
        SlurmUnreachableError: it is not up.
        ClusterError: its first process does not answer.
    """
    paths = paths_of(name)
    started = must_run(paths)
    plan = read_json(paths.plan, Plan)
    reply = ask(paths, Request())
    states = _states(name) if reply.daemons.get("slurmctld") else {}
    nodes = tuple(
        NodeStatus(
            name=node.name,
            state=states.get(node.name, NodeState("unknown")).state,
            reason=states.get(node.name, NodeState("unknown")).reason,
            power=reply.nodes[node.name],
            cpus=node.cpus,
            memory=node.memory,
            gpus=node.gpus,
            gpu_type=node.gpu_type,
            address=node.address,
        )
        for node in all_nodes(plan.shape)
    )
    return Status(
        name=name,
        up=True,
        controller=bool(states),
        accounting=plan.shape.accounting,
        nodes=nodes,
        partitions=tuple(
            PartitionStatus(part.name, part.default, part.nodes, part.max_nodes, part.max_time)
            for part in partitions_of(plan.shape)
        ),
        directory=str(paths.directory),
        logs=str(paths.logs),
        slurm_conf=str(paths.conf),
        shared=started.shared,
    )


def _states(name: str) -> dict[str, NodeState]:
    try:
        return node_states(access(name, "/").prefix, timeout=10) or {}
    except CommandFailedError:
        return {}
