"""Rehearse failures: pull a node's cable, put it back, switch a node off and on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from toolkit.errors import ClusterError, UsageError
from toolkit.localcluster.access import access, must_run
from toolkit.localcluster.control import ask
from toolkit.localcluster.paths import Paths, paths_of
from toolkit.localcluster.plan import Request, Verb
from toolkit.localcluster.states import NodeState, node_states
from toolkit.progress import Progress

NOTICED_WITHIN = (
    90.0  # seconds until Slurm has seen that a node went or came; 15 to 30 as it is configured here
)


def switch(name: str, verb: Verb, node: str, progress: Progress, *, wait: bool) -> NodeState | None:
    """Do ``verb`` to a node.

    Args:
        name: of the cluster.
        verb: ``cut`` or ``join`` its network cable; ``kill`` (power off) or ``start`` it.
        node: its name.
        progress: is told what happens.
        wait: until Slurm has noticed: the node is usable again, or down.

    Returns:
        what Slurm says of the node, if it was waited for.

    Raises:
        SlurmUnreachableError: the cluster is not up.
        UsageError: it has no such node.
        ClusterError: it could not be done, or Slurm did not notice.
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
    return _await(paths, access(name, "/").prefix, node, back=back)


def _await(paths: Paths, prefix: Sequence[str], node: str, *, back: bool) -> NodeState:
    deadline = time.monotonic() + NOTICED_WITHIN
    state = NodeState("unknown")
    while time.monotonic() < deadline:
        state = (node_states(prefix, timeout=30) or {}).get(node, state)
        if state.usable if back else state.down:
            return state
        time.sleep(0.2)
    raise ClusterError(
        f"Slurm calls {node} {state.state} after {NOTICED_WITHIN:g} s"
        + (f": {state.reason}" if state.reason else ""),
        next_step=f"see {paths.log_of('slurmctld')}",
    )
