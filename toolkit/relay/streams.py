"""Connections of an end of a relay, and the events that it waits for.

It is sent to the node as source; ``wire`` says what that means.
"""

import select
import socket
from typing import Dict, Optional

from toolkit.relay.wire import WINDOW


class Poll:
    """An ``epoll`` that knows what it waits for.

    Unlike ``selectors``, it can wait for the hang-up of a socket alone (a mask of 0).
    """

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.masks: Dict[int, int] = {}

    def want(self, descriptor: int, mask: Optional[int]) -> None:
        """Wait for these events of a descriptor; None: for none, not even its hang-up."""
        before = self.masks.get(descriptor)
        if mask == before:
            return
        if mask is None:
            del self.masks[descriptor]
            self.epoll.unregister(descriptor)
            return
        self.masks[descriptor] = mask
        if before is None:
            self.epoll.register(descriptor, mask)
        else:
            self.epoll.modify(descriptor, mask)


class Stream:
    """One connection at one end.

    Attributes:
        target: which of the servers it is for.
        pending: bytes of the other end that the socket has not taken yet.
        credit: bytes that may be sent to the other end.
        owed: bytes that the socket has taken and the other end has no credit for yet.
        unpacked: the number of next frames whose content is not compressed.
        has_read_all: the socket's peer sends no more.
        has_all: the other end sends no more.
        has_some: the other end has sent something, so that the server takes the connection.
    """

    def __init__(self, number: int, sock: socket.socket, target: int) -> None:
        sock.setblocking(False)
        self.number, self.sock, self.target = number, sock, target
        self.descriptor = sock.fileno()
        self.pending = bytearray()
        self.credit, self.owed, self.unpacked = WINDOW, 0, 0
        self.has_read_all = self.has_all = self.has_some = self.is_shut = False
