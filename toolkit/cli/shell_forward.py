"""`toolkit shell --forward`: the relay beside a shell."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from toolkit.cli import console
from toolkit.cli.forward import SSH_HELP, server_name
from toolkit.cli.shared import FIRST_PORT
from toolkit.errors import ToolkitError, UsageError

if TYPE_CHECKING:
    from toolkit.relay.child import Child
    from toolkit.relay.gate import Event
    from toolkit.runs.forward import Door
    from toolkit.runs.run import Run

_PAUSE = 0.2  # seconds between two checks for the number of the job
_QUIET_SECONDS = 30.0  # in which the same message is not printed again


class Wanted(NamedTuple):
    """The servers that shall be reached while a shell is open."""

    targets: Sequence[str] = ()
    by_ssh: bool = False


def forward_options(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that name servers."""
    ssh = click.option("--ssh", "by_ssh", is_flag=True, help=f"With --forward: {SSH_HELP}")
    return click.option(
        "--forward",
        "forwards",
        metavar="PORT-or-SOCKET",
        multiple=True,
        help="Reach a server in the shell, such as TensorBoard, while it is open; repeatable.",
    )(ssh(function))


def wanted(forwards: Sequence[str], *, by_ssh: bool) -> Wanted:
    """Return the servers of the command line.

    Raises:
        UsageError: one is not valid or is named twice, or --ssh is alone.
    """
    from toolkit.runs import forward

    targets = tuple(forward.target(each, place="--forward") for each in forwards)
    if by_ssh and not targets:
        raise UsageError(
            "--ssh says how --forward reaches the node",
            place="--ssh",
            next_step="--forward PORT-or-SOCKET --ssh, or leave out --ssh",
        )
    for target in targets:
        if targets.count(target) > 1:
            raise UsageError(
                f"{server_name(target)} is named twice",
                place="--forward",
                next_step="name each server once",
            )
    return Wanted(targets, by_ssh)


@contextlib.contextmanager
def beside(run: Run, wanted: Wanted) -> Iterator[Child]:
    """Listen, print the way in, and carry connections once the job runs, until the block ends.

    The process that does so is there from the start: it removes the sockets also if this one is
    killed while it waits for nodes.
    """
    from toolkit.relay import sockets
    from toolkit.relay.child import Child
    from toolkit.runs import forward

    with contextlib.ExitStack() as stack:
        names = [forward.socket_path(run, target) for target in wanted.targets]
        places = {name: stack.enter_context(sockets.listening(name)) for name in names}
        child = stack.enter_context(Child())
        if places:
            _tell(wanted.targets, names)
            child.start(partial(_serve, run, wanted, places))
            for listener in places.values():  # else connections wait here once the child has ended
                listener.close()
        yield child


def own_ports(targets: Sequence[str]) -> list[int]:
    """Return a port of the user's own machine for each server: its own, or a free one."""
    taken = {int(target) for target in targets if target.isdigit()}
    free = (port for port in range(FIRST_PORT, 65536) if port not in taken)
    return [int(target) if target.isdigit() else next(free) for target in targets]


def _tell(targets: Sequence[str], names: Sequence[Path]) -> None:
    from toolkit.runs import forward

    ports = own_ports(targets)
    console.fact("ssh", forward.ssh_command(*zip(ports, names, strict=True)))
    for place, (port, target) in enumerate(zip(ports, targets, strict=True)):
        what = "" if target.isdigit() else f"  ({target})"
        console.fact("" if place else "address", f"http://localhost:{port}/{what}")
    console.say("", "both on your own machine, while this shell is open")


def _serve(run: Run, wanted: Wanted, places: dict[Path, socket.socket]) -> None:
    """Carry connections until the shell ends. It runs in a process of its own."""
    from toolkit.relay import sockets
    from toolkit.runs import forward

    own = {path: path.lstat().st_ino for path in places}
    # The terminal is in raw mode, where a line break alone does not lead to the first column.
    sys.stderr.reconfigure(newline="\r\n")  # type: ignore[union-attr]
    try:
        while not (run.directory / "run.json").is_file():
            time.sleep(_PAUSE)
        door = forward.locate(run, wanted.targets[0], by_ssh=wanted.by_ssh)
        doors = [door._replace(target=target) for target in wanted.targets]
        notices = _Notices(doors)
        for event in forward.open_doors(doors, list(places.values())):
            notices.show(event)
    except ToolkitError as error:
        _say("forward", f"{error.cause}: {'; '.join((*error.details, error.next_step or ''))}")
    finally:  # the shell's process does this, too, unless it was killed
        for path, listener in places.items():
            listener.close()
            sockets.remove(path, own[path])


class _Notices:
    """Lines between the shell's own, where they disturb: only what the user has to know."""

    def __init__(self, doors: Sequence[Door]) -> None:
        self._doors = doors
        self._node = doors[0].node
        self._lost = ""
        self._times: dict[str, float] = {}

    def show(self, event: Event) -> None:
        """Print an event, but not that a connection is lost for a moment or with the shell."""
        from toolkit.relay import gate

        if isinstance(event, gate.Refused):
            name = server_name(self._doors[event.place].target)
            self._once("refused", f"{name} of {self._node} does not answer: {event.reason}")
        elif isinstance(event, gate.Lost):
            if self._lost:
                self._once("lost", f"connection to {self._node}: {event.reason}")
            self._lost = event.reason
        elif isinstance(event, gate.Connected) and self._lost:
            _say("connected", f"to {self._node} again; it was lost: {self._lost}")
            self._lost = ""

    def _once(self, name: str, text: str) -> None:
        now = time.monotonic()
        if now - self._times.get(text, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._times[text] = now
            _say(name, text)


def _say(name: str, text: str) -> None:
    """Print a line below the one on which the user types."""
    with contextlib.suppress(OSError):  # the terminal is closed
        console.note("")
        console.say(name, text)
