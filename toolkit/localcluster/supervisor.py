"""The first process of a local cluster: starts everything in its namespaces, takes in orphans, and switches nodes on and off.

Run as ``python -m toolkit.localcluster.supervisor DIRECTORY`` within new namespaces, by `up`. All
that the cluster is dies with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.files import read_json
from toolkit.localcluster.failure import StartError
from toolkit.localcluster.inside import Inside
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.plan import KEEP, Plan, Reply, Report, Request
from toolkit.model.base import BadDataError, from_json, to_json

_kept = threading.Event()


def main(directory: Path) -> int:
    """Never returns but after a failure: with exit code 1."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # A handler that does nothing, and not SIG_IGN, which daemons and jobs would inherit.
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_unless_kept, daemon=True).start()
    paths = Paths(directory.name, directory)
    inside = Inside(paths, read_json(paths.plan, Plan))
    try:
        inside.start(lambda step: _report(Report(step=step)))
        server = _listen(paths.control)
    except (ToolkitError, OSError) as error:
        return _fail(error)
    _report(Report(ready=True))
    return _serve(paths, inside, server)


def _end_unless_kept() -> None:
    """Whoever started us holds the other end of our input. If they die before they have said ``keep``, nothing may stay behind."""
    if sys.stdin.readline() != KEEP:
        os._exit(1)
    _kept.set()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody listens any more


def _report(report: Report) -> None:
    sys.stdout.write(to_json(report, indent=-1))
    sys.stdout.flush()


def _fail(error: Exception) -> int:
    logs = error.logs if isinstance(error, StartError) else ()
    details = error.details if isinstance(error, ToolkitError) else ()
    _report(Report(failed=str(error), logs=tuple(map(str, logs)), details=details))
    return 1


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o600)
    server.listen()
    return server


def _serve(paths: Paths, inside: Inside, server: socket.socket) -> int:
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    while True:
        for daemon in inside.reap():
            if not _kept.is_set():
                return _fail(
                    StartError(
                        f"{daemon} ended", (paths.log_of(daemon), paths.logs / f"{daemon}.out")
                    )
                )
            print(f"{daemon} ended", file=sys.stderr, flush=True)
        for _ in selector.select(timeout=0.2):
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                client.settimeout(5)
                client.sendall(
                    to_json(_answer(inside, client.makefile().readline()), indent=-1).encode()
                )


def _answer(inside: Inside, line: str) -> Reply:
    try:
        request = from_json(line, Request)
        if request.node is not None and request.node not in inside.nodes:
            return Reply(failed=f"there is no node {request.node}")
        _act(inside, request)
    except BadDataError as error:
        return Reply(failed=str(error))
    except ToolkitError as error:
        return Reply(failed=error.cause, details=error.details)
    except Exception as error:  # whatever it was, the cluster dies if we do
        return Reply(failed=repr(error))
    return Reply(nodes=inside.power, daemons=dict.fromkeys(inside.daemons, True))


def _act(inside: Inside, request: Request) -> None:
    if request.node is None:
        return
    if request.verb in ("cut", "join"):
        inside.cable(request.node, plugged=request.verb == "join")
    elif request.verb == "kill":
        inside.switch_off(request.node)
    elif request.verb == "start":
        inside.switch_on(request.node)
        inside.await_slurmd(request.node)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
