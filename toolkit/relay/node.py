"""The node's end of a relay: opens a connection to a server for each one that arrives.

It is sent to the node as source; ``wire`` says what that means.

Arguments: the server, a port of the loopback address or the path of a Unix socket; the nonce of the
greeting.
"""

import errno
import os
import socket
import sys
from typing import Iterator, Tuple

from toolkit.relay.wire import Relay, WireError, greeting

LISTENING = "0A"  # state of a socket in /proc/net/tcp: TCP_LISTEN


def listeners() -> Iterator[Tuple[int, int]]:
    """Yield port and user of every TCP socket that listens on this node."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as stream:
                rows = [line.split() for line in stream][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == LISTENING:
                yield int(row[1].rsplit(":", 1)[1], 16), int(row[7])


def require_own(users: "set[int]") -> None:
    """Refuse a server of another user, who could have taken the port first.

    Raises:
        OSError: the server is not this user's.
    """
    if users - {os.geteuid()}:
        raise OSError(errno.EPERM, "it belongs to another user of the node")


def connect(target: str) -> socket.socket:
    """Connect to the server.

    Raises:
        OSError: it does not answer, or belongs to another user.
    """
    if not target.isdigit():
        require_own({os.stat(target).st_uid})
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(target)
        return sock
    port = int(target)
    require_own({user for number, user in listeners() if number == port})
    try:
        sock = socket.create_connection(("127.0.0.1", port), 5)
    except ConnectionRefusedError:
        sock = socket.create_connection(("::1", port), 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def serve(target: str, nonce: str) -> None:
    """Carry connections until the other end is gone."""
    relay = Relay(0, 1, connect=lambda: connect(target))
    relay.out += greeting(nonce)
    try:
        while True:
            relay.turn()
    except (WireError, KeyboardInterrupt):
        relay.close()


if __name__ == "__main__":
    serve(*sys.argv[-2:])
