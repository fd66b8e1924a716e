"""Query the nodes, partitions and daemons of a cluster, and switch nodes to rehearse failures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit import shell
from toolkit.errors import ClusterError, CommandFailedError, UsageError
from toolkit.files import read_json
from toolkit.localcluster.access import access, must_run
from toolkit.localcluster.control import Plan, Power, Request, Verb, ask
from toolkit.localcluster.paths import Paths, paths_of
from toolkit.localcluster.shape import all_nodes, partitions_of
from toolkit.shell import Progress

# Seconds until Slurm has noticed that a node is down or back; 15 to 30 with our configuration.
_NOTICED_WITHIN, _NOTICED_WITHIN_EACH = 90.0, 0.3  # and for each node


@dataclass(frozen=True)
class NodeState:
    """The state of a node in Slurm: ``idle``, ``mixed``, ``down*`` (it does not answer), ..."""

    state: str
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Jobs can run on the node."""
        return self.state in ("idle", "mixed", "allocated", "completing")

    @property
    def down(self) -> bool:
        """Slurm has taken the node out of service."""
        return self.state.startswith("down")


def node_states(prefix: Sequence[str], timeout: float = 10) -> dict[str, NodeState] | None:
    """Return the state of every node by its name; None if the controller does not answer.

    Args:
        prefix: the words that bring a command to the cluster.
        timeout: seconds.

    Raises:
        CommandFailedError: there was no answer within ``timeout``.
    """
    answer = shell.run(
        (*prefix, "sinfo", "--noheader", "--Node", "--format=%N|%T|%E"),
        check=False,
        timeout=timeout,
    )
    if not answer.ok:
        return None
    rows = [line.split("|", 2) for line in answer.stdout.splitlines() if line.count("|") >= 2]
    return {
        name: NodeState(state, "" if reason == "none" else reason) for name, state, reason in rows
    }


@dataclass(frozen=True)
class NodeStatus:
    """A node: its ``power``, and its ``state`` in Slurm. Memory is in MB."""

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
    """A partition; None means no limit."""

    name: str
    default: bool
    nodes: str
    max_nodes: int | None
    max_time: str | None


@dataclass(frozen=True)
class Status:
    """A cluster that is up.

    Attributes:
        controller: slurmctld answers.
        light: the nodes share the cluster's namespaces.
    """

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
    real_gpus: bool
    light: bool


def status(name: str) -> Status:
    """Return the status of the cluster ``name``.

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
        real_gpus=started.real_gpus,
        light=plan.shape.is_light,
    )


def _states(name: str) -> dict[str, NodeState]:
    try:
        return node_states(access(name, "/").prefix, timeout=10) or {}
    except CommandFailedError:
        return {}


def switch(name: str, verb: Verb, node: str, progress: Progress, *, wait: bool) -> NodeState | None:
    """Switch a node or its network cable, and wait for Slurm to notice.

    Args:
        name: of the cluster.
        verb: ``cut`` or ``join`` its network cable; ``kill`` (power off) or ``start`` it.
        node: its name.
        progress: shows the steps.
        wait: until Slurm has noticed that the node is usable again, or down.

    Returns:
        The state of the node in Slurm, if ``wait`` is set.

    Raises:
        SlurmUnreachableError: the cluster is not up.
        UsageError: it has no such node.
        ClusterError: it failed, or Slurm did not notice.
    """
    paths = paths_of(name)
    must_run(paths)
    known = tuple(ask(paths, Request()).nodes)
    if node not in known:
        raise UsageError(
            f"cluster {name} has no node {node!r}",
            choices=known,
            value=node,
            next_step="toolkit cluster status",
        )
    progress.begin(verb, node)
    ask(paths, Request(verb=verb, node=node))
    if not wait:
        return None
    back = verb in ("join", "start")
    progress.begin(
        "waiting", f"until Slurm calls {node} {'usable' if back else 'down'}", 5.0 if back else 25.0
    )
    patience = _NOTICED_WITHIN + _NOTICED_WITHIN_EACH * len(known)
    return _await(paths, access(name, "/").prefix, node, back=back, patience=patience)


def _await(
    paths: Paths, prefix: Sequence[str], node: str, *, back: bool, patience: float
) -> NodeState:
    deadline = time.monotonic() + patience
    state = NodeState("unknown")
    while time.monotonic() < deadline:
        state = (node_states(prefix, timeout=30) or {}).get(node, state)
        if state.usable if back else state.down:
            return state
        time.sleep(0.2)
    raise ClusterError(
        f"Slurm calls {node} {state.state} after {patience:g} s"
        + (f": {state.reason}" if state.reason else ""),
        next_step=f"see {paths.log_of('slurmctld')}",
    )
