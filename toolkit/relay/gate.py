"""The end of a relay on the login node: the connections of its socket."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import BinaryIO, NamedTuple

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import CommandFailedError
from toolkit.relay.ends import Relay
from toolkit.relay.node import PACKS
from toolkit.relay.wire import WireError, greeting
from toolkit.slurm.client import without_job
from toolkit.text import one_line

_GRACE_SECONDS = 2.0  # for the node's end to leave by itself
_MOST_MESSAGES = 1 << 20  # bytes of the transport's messages, of which the last one is shown
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before the node's end is started again

# Reads the node's end from standard input. That is not read further than the program, whose frames
# follow it.
_LOADER = (
    "import os,sys\n"
    "n,s=int(sys.argv[1]),b''\n"
    "while len(s)<n:\n"
    "    p=os.read(0,n-len(s))\n"
    "    if not p: sys.exit(1)\n"
    "    s+=p\n"
    "exec(compile(s,'toolkit-relay','exec'))"
)
# Of the node's end: each imports those before it.
_PARTS = ("wire.py", "streams.py", "ends.py", "node.py")
_IMPORT = re.compile(r"^from toolkit\.relay\.[a-z]+ import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)

# Given the command of the node's end, returns the command that runs it there.
Transport = Callable[[Sequence[str]], Sequence[str]]


class Route(NamedTuple):
    """The route to servers on one node.

    Attributes:
        transport: runs a program on the node.
        targets: the servers: each a port, or the path of a Unix socket.
        is_running: whether the job runs still.
        outlives_job: the transport does not end with the job, so that the job is asked for.
        packs: content is compressed, since the transport is slow.
    """

    transport: Transport
    targets: Sequence[str]
    is_running: Callable[[], bool]
    outlives_job: bool = False
    packs: bool = True


class Connected(NamedTuple):
    """The node's end has begun."""


class Refused(NamedTuple):
    """A server did not take a connection.

    Attributes:
        place: of the server among those that connections are carried to.
    """

    reason: str
    place: int = 0


class Lost(NamedTuple):
    """The node's end is gone, and is started again after some seconds."""

    reason: str
    seconds: float


class Ended(NamedTuple):
    """The job has ended."""


Event = Connected | Refused | Lost | Ended


def program() -> bytes:
    """Return the source of the node's end."""
    directory = package_directory("relay")
    parts = ((directory / name).read_text(encoding="utf-8") for name in _PARTS)
    return "\n".join(_IMPORT.sub("", part) for part in parts).encode()


class _Link:
    """A node's end, and the relay to it."""

    def __init__(
        self, route: Route, listeners: Sequence[socket.socket], messages: BinaryIO
    ) -> None:
        nonce, source = secrets.token_hex(8), program()
        options = (str(len(source)), nonce, PACKS if route.packs else "plain")
        self.refusals: list[Refused] = []
        self.messages = messages
        self.process = shell.start(
            route.transport(("python3", "-I", "-c", _LOADER, *options, *route.targets)),
            env=without_job(os.environ),
            stdin=subprocess.PIPE,
            stderr=self.messages.fileno(),
            new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.relay = Relay(
            self.process.stdout.fileno(),
            self.process.stdin.fileno(),
            listeners=listeners,
            start=greeting(nonce),
            on_refused=lambda place, reason: self.refusals.append(Refused(one_line(reason), place)),
            packs=route.packs,
        )
        self.relay.out += source

    def __enter__(self) -> _Link:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the node's end: by the end of its input, or else by a signal."""
        self.relay.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_SECONDS)
                break
            # Its session, since the way into a local cluster has srun as a child.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        self.process.wait()

    def events(self, has_ended: Callable[[], bool]) -> Iterator[Event]:
        """Carry connections, and yield what happens, until the node's end or the job is gone."""
        is_open = False
        with contextlib.suppress(WireError):
            while not has_ended():
                self.relay.turn()
                if self.relay.is_open and not is_open:
                    is_open = True
                    yield Connected()
                while self.refusals:
                    yield self.refusals.pop(0)
                if os.fstat(self.messages.fileno()).st_size > _MOST_MESSAGES:
                    self.messages.truncate(0)

    def reason(self) -> str:
        """Return the last line that the transport printed, once it is gone, or how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_SECONDS)
        size = self.messages.seek(0, os.SEEK_END)
        self.messages.seek(max(0, size - 4096))
        lines = self.messages.read().decode("utf-8", "replace").strip().splitlines()
        if lines:
            return one_line(lines[-1])
        code = self.process.returncode
        if code is not None and code < 0:
            return f"it was ended by {signal.Signals(-code).name}"
        return "it ended without a message"


@contextlib.contextmanager
def _watched(route: Route) -> Iterator[Callable[[], bool]]:
    """Watch the job in a thread; yield a function that returns whether it has ended.

    Slurm can take a minute to answer, and the connections do not wait for it. Only a transport that
    does not end with the job needs this; of any other the function returns False.
    """
    stop, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.wait(_LONGEST_PAUSE):
            if not route.is_running():
                ended.set()
                return

    if route.outlives_job:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield ended.is_set
    finally:
        stop.set()


def carry(listeners: Sequence[socket.socket], route: Route) -> Iterator[Event]:
    """Carry connections to servers on a node until the job ends; the last event is ``Ended``.

    Args:
        listeners: where they arrive, one for each server.
        route: to the servers.

    Raises:
        CommandFailedError: the node's end could not be started at all.
    """
    was_open, pause = False, _FIRST_PAUSE
    while True:
        began = time.monotonic()
        with (
            tempfile.TemporaryFile("a+b") as messages,
            _watched(route) as has_ended,
            _Link(route, listeners, messages) as link,
        ):
            for event in link.events(has_ended):
                was_open = was_open or isinstance(event, Connected)
                yield event
            reason = link.reason() if not has_ended() else ""
        if has_ended() or not route.is_running():
            yield Ended()
            return
        if not was_open:
            other = (
                "ssh without a password" if route.outlives_job else "where nodes take ssh: --ssh"
            )
            raise CommandFailedError(
                "the relay could not be started on the node",
                place="forward",
                details=(reason,),
                next_step=f"it needs python3 there; {other}",
            )
        if time.monotonic() - began > _LONGEST_PAUSE:  # one that dies at once starts ever later
            pause = _FIRST_PAUSE
        yield Lost(reason, pause)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
