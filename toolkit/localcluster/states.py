"""What the controller says of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit import shell


@dataclass(frozen=True)
class NodeState:
    """A node as Slurm sees it: ``idle``, ``mixed``, ``allocated``, ``down*`` (it does not answer), ..."""

    state: str
    reason: str = ""

    @property
    def usable(self) -> bool:
        return self.state in ("idle", "mixed", "allocated", "completing")

    @property
    def down(self) -> bool:
        return self.state.startswith("down")


def node_states(prefix: Sequence[str], timeout: float = 10) -> dict[str, NodeState] | None:
    """Every node's state, by its name; None if the controller does not answer.

    Args:
        prefix: the words that bring a command to the cluster.
        timeout: seconds.

    Raises:
        CommandFailedError: there was no answer within ``timeout``.
    """
    said = shell.run(
        (*prefix, "sinfo", "--noheader", "--Node", "--format=%N|%T|%E"),
        check=False,
        timeout=timeout,
    )
    if not said.ok:
        return None
    rows = [line.split("|", 2) for line in said.stdout.splitlines() if line.count("|") >= 2]
    return {
        name: NodeState(state, "" if reason == "none" else reason) for name, state, reason in rows
    }
