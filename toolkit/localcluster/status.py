"""Query a cluster and its nodes, enter them, and switch them to rehearse failures."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from toolkit import shell
from toolkit.errors import ClusterError, CommandFailedError, UsageError
from toolkit.files import read_json
from toolkit.localcluster import processes
from toolkit.localcluster.access import must_run, prefix
from toolkit.localcluster.config import NODE_PORT, light_port
from toolkit.localcluster.paths import Paths, is_on_nodes, paths_of
from toolkit.localcluster.shape import Node, Plan, Shape, all_nodes
from toolkit.shell import Progress

Verb = Literal["cut", "join", "kill", "start"]
Power = Literal["on", "cut", "off"]
_POWER: dict[Verb, Power] = {"cut": "cut", "join": "on", "kill": "off", "start": "on"}
_SWITCHED_WITHIN = 20.0  # seconds
# Seconds until Slurm has noticed that a node is down or back; 15 to 30 with our configuration.
_NOTICED_WITHIN, _NOTICED_WITHIN_EACH = 90.0, 0.3  # and for each node


class NodeState(NamedTuple):
    """The state of a node in Slurm: ``idle``, ``mixed``, ``down*`` (it does not answer), ..."""

    state: str = "unknown"
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Jobs can run on the node."""
        return self.state in ("idle", "mixed", "allocated", "completing")


def node_states(prefix: Sequence[str], timeout: float) -> dict[str, NodeState]:
    """Return the state of every node by its name; none if the controller does not answer.

    Args:
        prefix: the words that bring a command to the cluster.
        timeout: seconds to wait for the answer.
    """
    question = ("sinfo", "--noheader", "--Node", "--format=%N|%T|%E")
    try:
        answer = shell.run((*prefix, *question), timeout=timeout)
    except CommandFailedError:
        return {}
    rows = [line.split("|", 2) for line in answer.stdout.splitlines() if line.count("|") >= 2]
    return {
        name: NodeState(state, "" if reason == "none" else reason) for name, state, reason in rows
    }


def status(name: str) -> dict[str, Any]:
    """Return the status of the cluster ``name``, as JSON has it. Memory is in MB.

    Raises:
        SlurmUnreachableError: it is not up.
        ClusterError: this process is on one of its nodes.
    """
    paths = paths_of(name)
    started = must_run(paths)
    shape = read_json(paths.plan, Plan).shape
    login, nodes = prefix(paths, started.pid, "/"), all_nodes(shape)
    powers, states = _powers(paths, login, nodes), node_states(login, timeout=10)
    of_nodes = ("cpus", "memory", "gpus", "gpu_type")
    return {
        "name": name,
        "up": True,
        "controller": bool(states),
        "accounting": shape.accounting,
        "nodes": [
            {
                "name": node.name,
                **{field: getattr(node.group, field) for field in of_nodes},
                "address": node.address,
                **states.get(node.name, NodeState())._asdict(),
                "power": powers[node.name],
            }
            for node in nodes
        ],
        "directory": str(paths.directory),
        "logs": str(paths.logs),
        "slurm_conf": str(paths.conf),
        "shared": started.shared,
        "real_gpus": started.real_gpus,
        "light": shape.is_light,
    }


def _powers(paths: Paths, login: Sequence[str], nodes: Sequence[Node]) -> dict[str, Power]:
    """Return the power of each node: its processes are seen in /proc, its cable by ip(8).

    Raises:
        ClusterError: this process is on a node, which sees its own processes only.
    """
    if processes.is_on_node(paths):
        raise ClusterError(
            "this shell is on a node of the cluster, which sees no other",
            next_step="exit it, or: toolkit cluster exec",
        )
    running = processes.node_processes(paths)
    links = json.loads(shell.run((*login, "ip", "-json", "link"), timeout=10).stdout)
    cut = {link["ifname"] for link in links if "UP" not in link["flags"]}
    return {
        node.name: "off" if node.name not in running else "cut" if node.link in cut else "on"
        for node in nodes
    }


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
    login = prefix(paths, must_run(paths).pid, "/")
    shape, machine = _find(paths, node)
    if shape.is_light and verb in ("cut", "join"):
        raise ClusterError(
            f"{node} has no network cable of its own to {verb}, since the nodes of this cluster are"
            " light; `toolkit cluster kill` works, and so does a cluster of at most 200 nodes"
            " without --light"
        )
    progress.begin(verb, node)
    _switch(paths, login, verb, machine)
    back = verb in ("join", "start")
    if back:
        port = light_port(machine) if shape.is_light else NODE_PORT
        _await_slurmd(paths, login, machine, port)
    if verb == "join" and (pid := processes.node_processes(paths).get(node)):
        os.kill(pid, signal.SIGHUP)  # its slurmd registers with the controller
    if not wait:
        return None
    progress.begin("waiting", f"until Slurm calls {node} {'usable' if back else 'down'}")
    patience = _NOTICED_WITHIN + _NOTICED_WITHIN_EACH * len(all_nodes(shape))
    deadline = time.monotonic() + patience
    state = NodeState()
    while time.monotonic() < deadline:
        state = node_states(login, timeout=30).get(node, state)
        if state.usable if back else state.state.startswith("down"):
            return state
        time.sleep(0.2)
    raise ClusterError(
        f"Slurm calls {node} {state.state} after {patience:g} s"
        + (f": {state.reason}" if state.reason else ""),
        next_step=f"see {paths.log_of('slurmctld')}",
    )


def _switch(paths: Paths, login: Sequence[str], verb: Verb, node: Node) -> None:
    """Switch a node; one command at a time does.

    Raises:
        ClusterError: it is off and has to be started first, or nothing happened.
    """
    wanted = _POWER[verb]
    pipe = os.open(paths.control, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(pipe, fcntl.LOCK_EX)
        power = _powers(paths, login, [node])[node.name]
        if power == "off" and verb in ("cut", "join"):
            raise ClusterError(
                f"{node.name} is switched off", next_step=f"toolkit cluster start {node.name}"
            )
        if power == wanted or (power == "cut" and verb == "start"):
            return
        if verb == "kill":
            processes.kill_node(paths, node.name)
        else:
            os.write(pipe, f"{verb} {node.name}\n".encode())
        deadline = time.monotonic() + _SWITCHED_WITHIN
        while _powers(paths, login, [node])[node.name] != wanted:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{node.name} is not {wanted} after {_SWITCHED_WITHIN:g} s",
                    next_step=f"see {paths.log_of('cluster')}, {paths.log_of(f'init.{node.name}')}",
                )
            time.sleep(0.05)
    finally:
        os.close(pipe)


def _await_slurmd(paths: Paths, login: Sequence[str], node: Node, port: int) -> None:
    """Wait until slurmd of a node takes connections; Slurm may not have noticed its absence.

    Raises:
        ClusterError: it does not.
    """
    connect = ("timeout", "1", "bash", "-c", f": <>/dev/tcp/{node.address}/{port}")
    deadline = time.monotonic() + _SWITCHED_WITHIN
    while not shell.run((*login, *connect), check=False).ok:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"slurmd of {node.name} did not start",
                next_step=f"see {paths.log_of(f'slurmd.{node.name}')}",
            )
        time.sleep(0.05)


def enter(name: str, command: Sequence[str], *, node: str | None = None) -> NoReturn:
    """Become ``command`` on the login side of the cluster ``name``, or on one of its nodes.

    It runs in the current directory, or in ``/`` on a node that does not have this directory.

    Raises:
        SlurmUnreachableError: the cluster is not up.
        UsageError: it has no such node.
        ClusterError: the node is switched off, or this process is in the cluster.
    """
    paths = paths_of(name)
    started = must_run(paths)
    pid, directory = started.pid, None
    if node is not None:
        pid = _process_of(paths, node)
        directory = None if is_on_nodes(str(Path.cwd()), started.shared) else "/"
    words = (*prefix(paths, pid, directory), f"TOOLKIT_CLUSTER={name}", *command)
    shell.become(words, os.environ)


def _process_of(paths: Paths, node: str) -> int:
    """Return the first process of a node."""
    if processes.is_within(paths):
        raise ClusterError(
            "this shell is in the cluster, from where no node can be entered",
            next_step="exit it, or: srun -w NODE --pty bash",
        )
    _find(paths, node, "--node")
    pid = processes.node_processes(paths).get(node)
    if pid is None:
        raise ClusterError(f"{node} is switched off", next_step=f"toolkit cluster start {node}")
    return pid


def _find(paths: Paths, name: str, place: str | None = None) -> tuple[Shape, Node]:
    """Return the shape of a cluster, and a node of it. Raise UsageError if it has none such."""
    shape = read_json(paths.plan, Plan).shape
    nodes = {node.name: node for node in all_nodes(shape)}
    if name not in nodes:
        raise UsageError(
            f"cluster {paths.name} has no node {name!r}",
            place=place,
            choices=nodes,
            value=name,
            next_step=f"toolkit cluster status; one of {', '.join([*nodes][:8])}",
        )
    return shape, nodes[name]
