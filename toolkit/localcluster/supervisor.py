"""Run the first process of a local cluster: start its parts, reap orphans, and switch nodes.

`up` runs it as ``python -m toolkit.localcluster.supervisor DIRECTORY`` within new namespaces. All
processes of the cluster die with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.files import read_json
from toolkit.localcluster.control import KEEP, Plan, Reply, Report, Request, StartError
from toolkit.localcluster.paths import Paths, paths_in
from toolkit.localcluster.services import Services
from toolkit.model.base import BadDataError, from_json, to_json

_confirmed = threading.Event()


def main(directory: Path) -> int:
    """Serve requests forever; return 1 after a failure."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # A handler that does nothing, and not SIG_IGN, which daemons and jobs would inherit.
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_unless_confirmed, daemon=True).start()
    paths = paths_in(directory)
    services = Services(paths, read_json(paths.plan, Plan))
    try:
        services.start(lambda step: _report(Report(step=step)))
        server = _listen(paths.control)
    except (ToolkitError, OSError) as error:
        return _fail(error)
    _report(Report(ready=True))
    return _serve(paths, services, server)


def _end_unless_confirmed() -> None:
    """End the cluster if `up`, which writes our stdin, dies before it sends ``keep``."""
    if sys.stdin.readline() != KEEP:
        os._exit(1)
    _confirmed.set()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no process reads it any more


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


def _serve(paths: Paths, services: Services, server: socket.socket) -> int:
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    while True:
        for daemon in services.reap():
            if not _confirmed.is_set():
                logs = (paths.log_of(daemon), paths.logs / f"{daemon}.out")
                return _fail(StartError(f"{daemon} ended", logs))
            print(f"{daemon} ended", file=sys.stderr, flush=True)
        for _ in selector.select(timeout=0.2):
            client, _ = server.accept()
            with contextlib.suppress(OSError):
                client.settimeout(5)
                # This thread alone starts programs, since it reaps whatever ends.
                steps = _steps(services, client.makefile().readline())
                reply = _answer(services, steps)
                rest = threading.Thread(target=_reply, args=(services, client, steps, reply))
                rest.daemon = True
                rest.start()


def _reply(services: Services, client: socket.socket, steps: Iterator[None], reply: Reply) -> None:
    """Send a reply; before that, make the last step of a request, which only waits."""
    with client, contextlib.suppress(OSError):
        last = reply if reply.failed else _answer(services, steps)
        client.sendall(to_json(last, indent=-1).encode())


def _answer(services: Services, steps: Iterator[None]) -> Reply:
    """Make the next step of a request."""
    try:
        next(steps, None)
    except BadDataError as error:
        return Reply(failed=str(error))
    except ToolkitError as error:
        return Reply(failed=error.cause, details=error.details)
    except Exception as error:  # the cluster would die with this process
        return Reply(failed=repr(error))
    return Reply(nodes=services.nodes.power, daemons=dict.fromkeys(services.daemons, True))


def _steps(services: Services, line: str) -> Iterator[None]:
    """Do what a request wants; what comes after ``yield`` only waits."""
    request = from_json(line, Request)
    if request.node is None:
        return
    if request.node not in services.nodes.power:
        raise BadDataError(f"there is no node {request.node}")
    if request.verb in ("cut", "join"):
        services.nodes.cable(request.node, plugged=request.verb == "join")
    elif request.verb == "kill":
        services.nodes.switch_off(request.node)
    elif request.verb == "start":
        services.nodes.switch_on(request.node)
        yield
        services.nodes.await_slurmd(request.node)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
