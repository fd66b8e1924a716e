"""Ask the first process of a running cluster: only it has the privileges to switch a node or its cable."""

from __future__ import annotations

import socket

from toolkit.errors import ClusterError
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.plan import Reply, Request
from toolkit.model.base import BadDataError, from_json, to_json


def ask(paths: Paths, request: Request, timeout: float = 60) -> Reply:
    """Send a request and wait for the answer.

    Raises:
        ClusterError: it could not be done, or the first process does not answer.
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
            details=(),
        ) from error
    if reply.failed:
        raise ClusterError(f"cluster {paths.name}: {reply.failed}", details=reply.details)
    return reply
