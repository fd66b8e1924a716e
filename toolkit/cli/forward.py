"""`toolkit forward`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import INTERRUPTED, complete_runs, json_option, options, runs_option
from toolkit.errors import UsageError
from toolkit.relay import gate, sockets
from toolkit.runs import forward
from toolkit.runs.directories import find
from toolkit.shell import interrupted_by_signals

FIRST_PORT = 8888  # of the user's own machine, as Jupyter itself takes it


class Entrance(NamedTuple):
    """The place at which connections arrive, and its address on the user's own machine.

    Attributes:
        port: on the user's own machine.
        socket: path of the socket on this host; None: the default.
        listen: a port of this machine's loopback address instead of a socket.
    """

    port: int
    socket: Path | None = None
    listen: int | None = None


entrance_options: Callable[[Callable[..., int]], Callable[..., int]] = options(
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
        help="Reach the node by ssh instead of srun: faster, where nodes take it.",
    ),
)


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
    door = forward.locate(find(run, runs), target, node=node, by_ssh=by_ssh)
    own_port = port or listen or (int(door.target) if door.target.isdigit() else FIRST_PORT)
    return carry(door, Entrance(own_port, socket_path, listen), as_json=as_json)


def carry(door: forward.Door, entrance: Entrance, path: str = "/", *, as_json: bool = False) -> int:
    """Print how to connect, carry connections until the job ends, and return the exit code.

    Args:
        door: the way to the server.
        entrance: the place at which connections arrive.
        path: of the address in a browser.
        as_json: print the way in for programs.
    """
    require_one(entrance)
    own, ssh = Path(), ""
    if entrance.listen is None:
        own = (entrance.socket or forward.socket_path(door.run, door.target, door.node)).absolute()
        ssh = forward.ssh_command(entrance.port, own)
    address = f"http://localhost:{entrance.port}{path}"
    try:
        with interrupted_by_signals(), _listening(entrance, own) as listener:
            is_shown = False
            for event in forward.open_door(door, listener):
                if isinstance(event, gate.Connected) and not is_shown:
                    is_shown = True
                    _show_way_in(door, ssh, address, as_json=as_json)
                else:
                    _show(event, door)
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


def require_free(entrance: Entrance, name: str) -> None:
    """Raise an error if nothing can listen at an entrance, whose own socket has a name by default.

    It is for what shall be known before a job queues.
    """
    require_one(entrance)
    own = Path() if entrance.listen else entrance.socket or sockets.private_directory() / name
    with _listening(entrance, own.absolute()):
        return


def _listening(entrance: Entrance, path: Path) -> AbstractContextManager[socket.socket]:
    if entrance.listen is not None:
        return sockets.listening_locally(entrance.listen)
    return sockets.listening(path)


def _show_way_in(door: forward.Door, ssh: str, address: str, *, as_json: bool) -> None:
    if as_json:
        console.out_json({"run": door.run.name, "node": door.node, "ssh": ssh, "address": address})
        return
    if ssh:
        console.fact("ssh", ssh)
    console.fact("address", address)
    console.say("", "both on your own machine; Ctrl-C here ends the connections, not the job")


def _show(event: gate.Event, door: forward.Door) -> None:
    if isinstance(event, gate.Connected):
        console.say("connected", f"to {door.node} again")
    elif isinstance(event, gate.Refused):
        server = f"port {door.target}" if door.target.isdigit() else door.target
        console.say("refused", f"{server} of {door.node} does not answer: {event.reason}")
    elif isinstance(event, gate.Lost):
        text = f"connection to {door.node}: {event.reason}; next try in {event.seconds:g} s"
        console.say("lost", text)
    elif isinstance(event, gate.Ended):
        console.say("ended", f"{door.run.name} is not running any more")
