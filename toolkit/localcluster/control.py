"""Exchange messages between `up`, the first process of a cluster, and later commands.

Only the first process of a running cluster has the privileges to switch a node or its cable.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from toolkit.errors import ClusterError
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.shape import Shape
from toolkit.model.base import BadDataError, Model, from_json, to_json

KEEP = "keep\n"  # sent by `up` at the end; without it the cluster ends itself

Verb = Literal["cut", "join", "kill", "start"]
Power = Literal["on", "cut", "off"]


class Plan(Model, frozen=True, kw_only=True):
    """The plan of a cluster, from which its first process starts it.

    Attributes:
        name: of the cluster.
        shape: a checked one.
        shared: directories below /tmp or /dev/shm that the nodes see.
        user: who runs it.
        as_user: the user is not root, and the cluster is in a user namespace.
        gpus: the number N of /dev/nvidiaN of each GPU of all nodes; empty: they are simulated.
    """

    name: str
    shape: Shape
    shared: tuple[str, ...] = ()
    user: str
    as_user: bool
    gpus: tuple[int, ...] = ()


class Report(Model, frozen=True, kw_only=True):
    """A message of the first process while it starts.

    Attributes:
        step: the step that it begins.
        ready: everything runs; the nodes still have to register.
        failed: the reason for giving up.
        logs: the files that may explain the failure, the likeliest first.
        details: lines that explain it.
    """

    step: str | None = None
    ready: bool = False
    failed: str | None = None
    logs: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


class Request(Model, frozen=True, kw_only=True):
    """A request to a running cluster; without a verb, for the state of its nodes."""

    verb: Verb | None = None
    node: str | None = None


class Reply(Model, frozen=True, kw_only=True):
    """The answer: each node's power, the daemons that run, or the reason for a failure."""

    nodes: dict[str, Power] = {}
    daemons: dict[str, bool] = {}
    failed: str | None = None
    details: tuple[str, ...] = ()


class StartError(ClusterError):
    """A part of the cluster did not start; ``logs`` may have the reason, the likeliest first."""

    def __init__(self, cause: str, logs: Iterable[Path] = (), details: Iterable[str] = ()) -> None:
        """Keep the logs beside the cause."""
        super().__init__(cause, details=tuple(details))
        self.logs = tuple(logs)


def ask(paths: Paths, request: Request, timeout: float = 60) -> Reply:
    """Send a request and wait for the answer.

    Raises:
        ClusterError: it failed, or the first process does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(timeout)
            client.connect(str(paths.control))
            client.sendall(to_json(request, indent=-1).encode())
            reply = from_json(client.makefile().readline(), Reply)
    except (OSError, BadDataError) as error:
        raise ClusterError(
            f"cluster {paths.name} does not answer: {error}",
            place=str(paths.control),
            next_step="toolkit cluster down, then up",
        ) from error
    if reply.failed:
        raise ClusterError(
            f"cluster {paths.name}: {reply.failed}",
            details=reply.details,
            next_step="toolkit cluster status shows the state of each node",
        )
    return reply
