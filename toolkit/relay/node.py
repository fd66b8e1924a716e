"""The node's end of a relay: opens a connection to a server for each one that arrives.

It is sent to the node as source; ``wire`` says what that means.

Arguments: the server, a port of the loopback address or the path of a Unix socket; the nonce of the
greeting.
"""

import errno
import os
import socket
import struct
import sys
from typing import Iterator, Set, Tuple

from toolkit.relay.wire import Relay, WireError, greeting

LISTENING = "0A"  # state of a socket in /proc/net/tcp: TCP_LISTEN
FULL_MICROSECONDS = 200000  # to wait for a place in the queue of a server, while all others wait


def written(host: str) -> str:
    """Return an address as /proc/net/tcp and /proc/net/tcp6 write it."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return "".join("%08X" % word for word in struct.unpack("=%dI" % (len(packed) // 4), packed))


# By address: who takes its connections. The kernel prefers the exact address to any address.
TAKERS = {
    "127.0.0.1": (("127.0.0.1", "::ffff:127.0.0.1"), ("0.0.0.0", "::")),
    "::1": (("::1",), ("::",)),
}


def listeners() -> Iterator[Tuple[str, int, int]]:
    """Yield address, port and user of every TCP socket that listens on this node."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as stream:
                rows = [line.split() for line in stream][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == LISTENING:
                address, port = row[1].rsplit(":", 1)
                yield address, int(port, 16), int(row[7])


def users_of(host: str, port: int) -> Set[int]:
    """Return the users whose servers take the connections to a port of a loopback address."""
    rows = [(address, user) for address, number, user in listeners() if number == port]
    for hosts in TAKERS[host]:
        users = {user for address, user in rows if address in map(written, hosts)}
        if users:
            return users
    return set()


def require_own(users: Set[int]) -> None:
    """Refuse a server of another user, who could have taken the port first.

    Raises:
        OSError: the server is not this user's.
    """
    if users != {os.geteuid()}:
        raise OSError(errno.EPERM, "it belongs to another user of the node")


def connect(target: str) -> socket.socket:
    """Connect to the server. It never waits for one that is stuck, since all connections would.

    Raises:
        OSError: it does not answer, or belongs to another user.
    """
    is_port = target.isdigit()
    hosts = ((host, users_of(host, int(target))) for host in sorted(TAKERS) if is_port)
    host, users = next(((host, users) for host, users in hosts if users), ("", set()))
    if is_port and not host:
        raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET if host else socket.AF_UNIX
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if host:
            require_own(users)
            connect_port(sock, host, int(target))
        else:
            connect_path(sock, target)
    except OSError:
        sock.close()
        raise
    return sock


def connect_port(sock: socket.socket, host: str, port: int) -> None:
    """Begin a connection to a port, whose owner is checked again: it can change in between.

    Raises:
        OSError: it cannot be had, or belongs to another user.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    error = sock.connect_ex((host, port))
    if error not in (0, errno.EINPROGRESS):
        raise OSError(error, os.strerror(error))
    require_own(users_of(host, port))


def connect_path(sock: socket.socket, path: str) -> None:
    """Connect to a socket. Its path can be exchanged at any time, so the server itself is checked.

    Raises:
        OSError: it does not answer, or belongs to another user.
    """
    wait = struct.pack("ll", 0, FULL_MICROSECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    try:
        sock.connect(path)
    except BlockingIOError as error:
        raise OSError(errno.EAGAIN, "too many connections wait for it") from error
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    require_own({struct.unpack("=iII", credentials)[1]})


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
