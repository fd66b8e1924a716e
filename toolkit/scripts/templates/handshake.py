# How the nodes of a job prove to each other that they belong to it. They know a secret, which never
# goes over the network: each side sends a random number, and answers the other's with a keyed hash
# (HMAC-SHA256). Every message afterwards has one, too: nobody in between can change, repeat or add
# one.
from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SECRET = bytes.fromhex(os.environ.pop("TOOLKIT_TOKEN"))  # known to this job's own processes only
STRANGER = 10  # seconds for the other side to prove itself
CROWD = 256  # connections at most that have not proved anything yet; then the oldest has to go
LONGEST = 1 << 16  # bytes of a message
SIZE = 32  # bytes of a random number, and of a hash


class StrangerError(Exception):
    """The other side does not belong to this job."""


def keyed(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((b"toolkit handshake 1", *parts)), hashlib.sha256)


def exactly(connection: socket.socket, count: int, until: float) -> bytes:
    """So many bytes, in time, however slowly they come."""
    found = b""
    while len(found) < count:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        part = connection.recv(count - len(found))
        if not part:
            raise StrangerError("it hung up")
        found += part
    return found


class Link:
    """A connection between two nodes of a job, which carries JSON objects."""

    def __init__(self, connection: socket.socket, purpose: str, *, leads: bool) -> None:
        """Prove and demand proof; the leading side is the one that was called.

        Raises:
            StrangerError: the other side did not prove itself.
            OSError: the connection broke, or no answer came in time.
        """
        run, until = f"{purpose} {os.environ['SLURM_JOB_ID']}".encode(), time.monotonic() + STRANGER
        own = secrets.token_bytes(SIZE)
        if leads:
            numbers = exactly(connection, SIZE, until) + own
            connection.sendall(own + keyed(SECRET, b"leader", run, numbers))
            self.demand(exactly(connection, SIZE, until), b"member", run, numbers)
        else:
            connection.sendall(own)
            numbers = own + exactly(connection, SIZE, until)
            self.demand(exactly(connection, SIZE, until), b"leader", run, numbers)
            connection.sendall(keyed(SECRET, b"member", run, numbers))
        self.key, self.sides = (
            keyed(SECRET, b"session", run, numbers),
            (b"leader", b"member") if leads else (b"member", b"leader"),
        )
        connection.settimeout(STRANGER)
        self.connection, self.lines = connection, connection.makefile("rb")
        self.sent = self.received = 0
        self.lock, self.closed = threading.Lock(), threading.Event()

    @staticmethod
    def demand(proof: bytes, *parts: bytes) -> None:
        if not hmac.compare_digest(proof, keyed(SECRET, *parts)):
            raise StrangerError("it does not know the job's secret")

    def seal(self, side: bytes, number: int, text: bytes) -> bytes:
        return keyed(self.key, side, b"%d" % number, text).hex().encode()

    def send(self, **message: Any) -> None:
        """Send a message; where the other side is gone, reading tells."""
        with contextlib.suppress(OSError), self.lock:
            text = json.dumps(message).encode()
            self.connection.sendall(self.seal(self.sides[0], self.sent, text) + b" " + text + b"\n")
            self.sent += 1

    def read(self) -> dict[str, Any] | None:
        """The next message; None where the other side is gone or silent, or somebody meddled."""
        try:
            seal, _, text = self.lines.readline(LONGEST).rstrip(b"\n").partition(b" ")
            if hmac.compare_digest(seal, self.seal(self.sides[1], self.received, text)):
                self.received += 1
                message: dict[str, Any] = json.loads(text)
                return message
        except (OSError, ValueError):
            pass
        self.close()
        return None

    def messages(self) -> Iterator[dict[str, Any]]:
        """Every message that says something."""
        return filter(None, iter(self.read, None))

    def close(self) -> None:
        self.closed.set()
        hang_up(self.connection)


def hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def call(host: str, port: int, purpose: str, patience: float) -> Link | None:
    """The link to the leading node, as soon as it is there; None: it was not, for so long."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with contextlib.suppress(OSError, StrangerError):
            connection = socket.create_connection((host, port), timeout=STRANGER)
            with contextlib.ExitStack() as unless_proved:
                unless_proved.callback(hang_up, connection)
                link = Link(connection, purpose, leads=False)
                if link.read() is not None:  # let in, and not dropped in a crowd
                    unless_proved.pop_all()
                    return link
        time.sleep(0.5)
    return None


def answer(server: socket.socket, purpose: str, enter: Callable[[Link], object]) -> None:
    """Let in whoever proves to belong to the job, until the server is closed."""
    waiting: list[socket.socket] = []
    lock = threading.Lock()

    def ask(connection: socket.socket) -> None:
        link = None
        with contextlib.suppress(OSError, StrangerError):
            link = Link(connection, purpose, leads=True)
        with lock:
            if connection in waiting:
                waiting.remove(connection)
        if link is None:
            hang_up(connection)
            return
        link.send()
        enter(link)

    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            if server.fileno() < 0:
                return
            time.sleep(0.1)  # no handle is free, or the caller has gone already
            continue
        with lock:
            waiting.append(connection)
            if len(waiting) > CROWD:
                with contextlib.suppress(OSError):
                    waiting.pop(0).shutdown(socket.SHUT_RDWR)
        threading.Thread(target=ask, args=(connection,), daemon=True).start()
