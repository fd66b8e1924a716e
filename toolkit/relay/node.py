"""The node's end of a relay: opens a connection to a server for each one that arrives.

It is sent to the node as source; ``wire`` says what that means.

Arguments: the length of its source; the nonce of the greeting; whether content is compressed; the
servers, each a port of the loopback address or the path of a Unix socket.
"""

import errno
import os
import socket
import struct
import sys
import time
from typing import Dict, Iterator, List, Sequence, Set, Tuple

from toolkit.relay.ends import Relay
from toolkit.relay.wire import WireError, greeting

LISTENING = "0A"  # state of a socket in /proc/net/tcp: TCP_LISTEN
# Of sock_diag(7) and netlink(7): nlmsghdr and inet_diag_req_v2; the user in an inet_diag_msg.
SOCK_DIAG, BY_FAMILY, DUMP, FAILED, DONE = 4, 20, 0x301, 2, 3
DIAG_REQUEST = struct.Struct("=IHHIIBBBBI2s46x")
UID = struct.Struct("=I")
PACKS = "packed"  # the argument by which content is compressed
FULL_MICROSECONDS = 200000  # to wait for a place in the queue of a server, while all others wait
REFUSED_SECONDS = 1.0  # after one has waited in vain, in which the next ones do not wait
REFUSED_UNTIL: Dict[str, float] = {}  # by the path of a server


def written(packed: bytes) -> str:
    """Return an address as /proc/net/tcp and /proc/net/tcp6 write it."""
    return "".join("%08X" % word for word in struct.unpack("=%dI" % (len(packed) // 4), packed))


# By address: who takes its connections. The kernel prefers the exact address to any address.
TAKERS = {
    "127.0.0.1": (("127.0.0.1", "::ffff:127.0.0.1"), ("0.0.0.0", "::")),
    "::1": (("::1",), ("::",)),
}


def listeners(port: int) -> Iterator[Tuple[str, int]]:
    """Yield address and user of every TCP socket that listens on a port of this node.

    The kernel is asked for them. Where it does not answer, they are read from /proc/net/tcp, for
    which it walks through a table of all connections that the node could have.
    """
    try:
        rows = asked(port)
    except OSError:
        rows = read(port)
    for row in rows:
        yield row


def asked(port: int) -> List[Tuple[str, int]]:
    """Return what listens on a port, by sock_diag(7).

    Raises:
        OSError: the kernel does not answer.
    """
    rows = []  # type: List[Tuple[str, int]]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as sock:
        sock.settimeout(1.0)
        for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
            head = (DIAG_REQUEST.size, BY_FAMILY, DUMP, 0, 0, family, socket.IPPROTO_TCP, 0, 0)
            sock.send(DIAG_REQUEST.pack(*head, 1 << int(LISTENING, 16), struct.pack(">H", port)))
            is_done = False
            while not is_done:
                for kind, message in messages(sock.recv(1 << 16)):
                    is_done = kind in (FAILED, DONE)
                    if is_done and struct.unpack_from("=i", message.ljust(4, b"\0"))[0]:
                        raise OSError(errno.EPROTO, "the kernel does not list what listens")
                    if not is_done:
                        rows.append(
                            (written(message[8 : 8 + size]), UID.unpack_from(message, 64)[0])
                        )
    return rows


def messages(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield type and content of the messages of netlink(7)."""
    place = 0
    while place + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, place)
        yield kind, data[place + 16 : place + length]
        place += max(16, length + 3 & ~3)


def read(port: int) -> List[Tuple[str, int]]:
    """Return what listens on a port, by /proc/net/tcp and /proc/net/tcp6."""
    listening = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as stream:
                rows = [line.split() for line in stream][1:]
        except OSError:
            continue
        for row in rows:
            address, number = row[1].rsplit(":", 1)
            if row[3] == LISTENING and int(number, 16) == port:
                listening.append((address, int(row[7])))
    return listening


def users_of(host: str, port: int) -> Set[int]:
    """Return the users whose servers take the connections to a port of a loopback address."""
    rows = list(listeners(port))
    for hosts in TAKERS[host]:
        addresses = [written(socket.inet_pton(family_of(each), each)) for each in hosts]
        users = {user for address, user in rows if address in addresses}
        if users:
            return users
    return set()


def family_of(host: str) -> int:
    """Return the family of an address; that of a Unix socket if it is empty."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET if host else socket.AF_UNIX


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
    sock = socket.socket(family_of(host), socket.SOCK_STREAM)
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
    if time.monotonic() < REFUSED_UNTIL.get(path, 0.0):
        sock.setblocking(False)
    else:
        wait = struct.pack("ll", 0, FULL_MICROSECONDS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    try:
        sock.connect(path)
    except BlockingIOError as error:
        REFUSED_UNTIL[path] = time.monotonic() + REFUSED_SECONDS
        raise OSError(errno.EAGAIN, "too many connections wait for it") from error
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    require_own({struct.unpack("=iII", credentials)[1]})


def serve(nonce: str, packs: bool, targets: Sequence[str]) -> None:
    """Carry connections until the other end is gone."""
    relay = Relay(0, 1, connect=lambda place: connect(targets[place]), packs=packs)
    relay.out += greeting(nonce)
    try:
        while True:
            relay.turn()
    except (WireError, KeyboardInterrupt):
        relay.close()


if __name__ == "__main__":
    serve(sys.argv[2], sys.argv[3] == PACKS, sys.argv[4:])
