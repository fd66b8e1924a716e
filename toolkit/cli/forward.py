"""`toolkit forward`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import FIRST_PORT, INTERRUPTED, complete_runs, json_option, runs_option
from toolkit.errors import UsageError
from toolkit.shell import interrupted_by_signals

if TYPE_CHECKING:
    from toolkit.runs.forward import Door

SSH_HELP = "reach the node by ssh instead of srun: faster, where nodes take it."


class Entrance(NamedTuple):
    """The place at which connections arrive, and its address on the user's own machine.

    Attributes:
        port: on the user's own machine.
        socket: path of the socket on this host; None: the default.
        listen: a port of this machine's loopback address instead of a socket.
        path: of the address in a browser.
    """

    port: int
    socket: Path | None = None
    listen: int | None = None
    path: str = "/"


def entrance_options(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that say where connections arrive."""
    options = (
        click.option(
            "--port",
            type=click.IntRange(1, 65535),
            help="Port on your own machine, in the address that is printed.",
        ),
        click.option(
            "--socket",
            "socket_path",
            metavar="PATH",
            type=click.Path(path_type=Path),
            help="Socket on this host (default: one in $TMPDIR/toolkit-UID or /tmp/toolkit-UID).",
        ),
        click.option(
            "--listen",
            metavar="PORT",
            type=click.IntRange(1, 65535),
            help="Listen on 127.0.0.1:PORT instead: only where all users of this machine may "
            "reach the server.",
        ),
        click.option(
            "--ssh",
            "by_ssh",
            is_flag=True,
            help=f"{SSH_HELP[0].upper()}{SSH_HELP[1:]}",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command("forward")
@click.argument("run", shell_complete=complete_runs)
@click.argument("target", metavar="PORT-or-SOCKET")
@click.option("--node", help="Node of the job with the server (default: the first).")
@entrance_options
@json_option
@runs_option
@cluster_option()
def command(
    run: str,
    target: str,
    node: str | None,
    port: int | None,
    socket_path: Path | None,
    listen: int | None,
    by_ssh: bool,
    as_json: bool,
    runs: Path,
) -> int:
    """Reach a server in a running job, such as TensorBoard.

    It needs no port on the network. The server (TensorBoard, a dashboard, a debugger) listens on
    PORT of the node's loopback address, or on SOCKET, an absolute path on the node. Its connections
    go through one step of the job to a socket of this host that only you can open. The command ends
    with the job, or by Ctrl-C, and connects again if the step is lost.

    \b
    Examples:
      toolkit forward train-0007 6006
      toolkit forward train-0007 /tmp/debug.sock --port 5678
      toolkit forward train-0007 8265 --node nid002 --ssh
    """
    from toolkit.runs import forward
    from toolkit.runs.directories import find

    door = forward.locate(find(run, runs), target, node=node, by_ssh=by_ssh)
    own_port = port or listen or (int(door.target) if door.target.isdigit() else FIRST_PORT)
    return carry(door, Entrance(own_port, socket_path, listen), as_json=as_json)


def carry(door: Door, entrance: Entrance, *, as_json: bool = False) -> int:
    """Print how to connect, carry connections until the job ends, and return the exit code."""
    from toolkit.runs import forward

    require_one(entrance)
    try:
        with interrupted_by_signals(), _listener(door, entrance) as (listener, ssh):
            is_shown = False
            for event in forward.open_doors([door], [listener]):
                _show(event, door, (ssh, entrance), is_shown, as_json=as_json)
                is_shown = True
    except KeyboardInterrupt:
        console.note("")
        console.say("closed", f"the connections; {door.run.name} keeps running")
        return INTERRUPTED
    return 0


def require_one(entrance: Entrance) -> None:
    """Raise UsageError if connections shall arrive at two places."""
    if entrance.socket is not None and entrance.listen is not None:
        raise UsageError(
            "connections arrive at a socket or a port, not at both",
            place="--listen",
            next_step="leave out --listen or --socket",
        )


def require_free(entrance: Entrance) -> None:
    """Raise an error if nothing can listen at the place that the user named."""
    from toolkit.relay import sockets

    require_one(entrance)
    if entrance.listen is not None:
        with sockets.listening_locally(entrance.listen):
            return
    if entrance.socket is not None:
        with sockets.listening(entrance.socket.absolute()):
            return


@contextlib.contextmanager
def _listener(door: Door, entrance: Entrance) -> Iterator[tuple[socket.socket, str]]:
    """Listen, and give the ssh command that leads here; it is empty if none is needed."""
    from toolkit.relay import sockets
    from toolkit.runs import forward

    if entrance.listen is not None:
        with sockets.listening_locally(entrance.listen) as listener:
            yield listener, ""
        return
    path = (entrance.socket or forward.socket_path(door.run, door.target, door.node)).absolute()
    with sockets.listening(path) as listener:
        yield listener, forward.ssh_command((entrance.port, path))


def _show(
    event: object, door: Door, where: tuple[str, Entrance], is_shown: bool, *, as_json: bool
) -> None:
    """Print an event; the way in is printed once, when the relay first works."""
    from toolkit.relay import gate

    server = server_name(door.target)
    if isinstance(event, gate.Connected):
        if is_shown:
            console.say("connected", f"to {door.node} again")
        else:
            _tell(door, *where, as_json=as_json)
    elif isinstance(event, gate.Refused):
        text = f"{server} of {door.node} does not answer: {event.reason}"
        console.say("refused", text)
    elif isinstance(event, gate.Lost):
        text = f"connection to {door.node}: {event.reason}; next try in {event.seconds:g} s"
        console.say("lost", text)
    elif isinstance(event, gate.Ended):
        console.say("ended", f"{door.run.name} is not running any more")


def server_name(target: str) -> str:
    """Return how messages call a server."""
    return f"port {target}" if target.isdigit() else target


def _tell(door: Door, ssh: str, entrance: Entrance, *, as_json: bool) -> None:
    address = f"http://localhost:{entrance.port}{entrance.path}"
    if as_json:
        console.out_json({"run": door.run.name, "node": door.node, "ssh": ssh, "address": address})
        return
    if ssh:
        console.fact("ssh", ssh)
    console.fact("address", address)
    note = "both on your own machine; Ctrl-C here ends the connections, not the job"
    console.say("", note)
