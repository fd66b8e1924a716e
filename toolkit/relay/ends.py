"""An end of a relay: its connections, and the frames that it sends and obeys.

It is sent to the node as source; ``wire`` says what that means.
"""

import errno
import os
import select
import socket
import time
from typing import Any, Callable, Dict, Optional, Sequence

from toolkit.relay.streams import Poll, Stream
from toolkit.relay.wire import (
    ACKNOWLEDGED,
    CREDIT,
    DATA,
    END,
    FLIGHT,
    OPEN,
    PACKED,
    PIECE,
    PING,
    RESET,
    WINDOW,
    Decoder,
    WireError,
    amount,
    frame,
    number_of,
    pack,
    unpack,
)

MOST = 256  # connections at one time; others wait in the queue of the kernel
READ = 64 * 1024  # from the pipe at once
TAKEN = 4  # connections that are read in one turn; epoll(7) reports the others in the next ones
PING_SECONDS = 15.0  # between two signs of life
SILENCE_SECONDS = 60.0  # without one, the other end is gone
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # of accept(2)
FULL_SECONDS = 1.0  # before the next connection is accepted, if there was no room for one
LEAST_PACKED = 512  # bytes; fewer are sent as they are
UNPACKED_PIECES = 15  # that are sent as they are after one that did not become smaller


class Relay:
    """One end.

    Two polls keep a turn short with many connections: ``sources`` has the sockets that may be read,
    and is itself in ``poll``, which has all else, as long as the pipe takes more.

    Args:
        reader, writer: descriptors of the two pipes.
        listeners: whose connections are carried to the other end, one for each server there; none:
            this end is the node's.
        connect: opens a connection of the node's end to one of the servers; an ``OSError`` is its
            refusal.
        start: the first bytes from the other end; see ``Decoder``.
        on_refused: is given the server and the reason if the node's end refuses a connection.
        packs: content is compressed, since the pipe is slower than that.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        *,
        listeners: Sequence[socket.socket] = (),
        connect: Optional[Callable[[int], socket.socket]] = None,
        start: bytes = b"",
        on_refused: Optional[Callable[[int, str], Any]] = None,
        packs: bool = False,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.listeners = {listener.fileno(): listener for listener in listeners}
        self.connect, self.on_refused, self.packs = connect, on_refused, packs
        self.decoder = Decoder(start)
        self.out = bytearray()
        self.flying = self.received = 0
        self.streams: Dict[int, Stream] = {}
        self.by_descriptor: Dict[int, Stream] = {}
        self.last_number, self.accept_after = 0, 0.0
        self.heard = self.pinged = time.monotonic()
        self.poll, self.sources = Poll(), Poll()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        self.poll.want(reader, select.EPOLLIN)

    @property
    def is_open(self) -> bool:
        """Return whether the other end has begun."""
        return not self.decoder.start

    def turn(self, seconds: float = 1.0) -> None:
        """Wait for something to do, at most for some seconds, and do it.

        Raises:
            WireError: the other end is gone.
        """
        self._want_shared()
        for descriptor, events in self.poll.epoll.poll(seconds):
            self._handle(descriptor, events)
        now = time.monotonic()
        if self.listeners and now - self.pinged > PING_SECONDS:
            self.pinged = now
            self.out += frame(PING)
        if now - self.heard > SILENCE_SECONDS:
            raise WireError("the other end gives no sign of life")
        if self.out:  # at once: the pipe nearly always has room
            self._send()

    def close(self) -> None:
        """End all connections; the pipes are the caller's."""
        for stream in list(self.streams.values()):
            self._forget(stream)
        self.poll.epoll.close()
        self.sources.epoll.close()

    def _want_shared(self) -> None:
        """Choose what is waited for beside the connections."""
        self.poll.want(self.writer, select.EPOLLOUT if self.out else None)
        may_take = self.flying < FLIGHT
        self.poll.want(self.sources.epoll.fileno(), select.EPOLLIN if may_take else None)
        if self.listeners:
            may_accept = self.is_open and len(self.streams) < MOST
            may_accept = may_accept and time.monotonic() >= self.accept_after
            for descriptor in self.listeners:
                self.poll.want(descriptor, select.EPOLLIN if may_accept else None)

    def _want(self, stream: Stream) -> None:
        """Choose what of a connection is waited for."""
        may_read = stream.credit > 0 and not stream.has_read_all
        self.sources.want(stream.descriptor, select.EPOLLIN if may_read else None)
        # A peer that has closed its socket takes no answer either: that is its hang-up, and without
        # a check of it the connection would stay open until the server writes.
        rest = 0 if stream.has_read_all else None
        self.poll.want(stream.descriptor, select.EPOLLOUT if stream.pending else rest)

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self.reader:
            self._receive()
        elif descriptor == self.writer:
            self._send()
        elif descriptor == self.sources.epoll.fileno():
            for source, _ in self.sources.epoll.poll(0, TAKEN):
                if source in self.by_descriptor:
                    self._take(self.by_descriptor[source])
        elif descriptor in self.listeners:
            self._accept(descriptor)
        elif descriptor in self.by_descriptor:  # it was not forgotten in this turn
            stream = self.by_descriptor[descriptor]
            if stream.pending:
                self._flush(stream)
            # Else the events are of an earlier connection, whose descriptor this one has got.
            elif stream.has_read_all and events & (select.EPOLLHUP | select.EPOLLERR):
                self._reset(stream, OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _accept(self, descriptor: int) -> None:
        try:
            sock, _ = self.listeners[descriptor].accept()
        except OSError as error:  # it has left the queue again, or stays in it
            if error.errno in NO_ROOM:
                self.accept_after = time.monotonic() + FULL_SECONDS
            return
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.last_number += 1
        target = list(self.listeners).index(descriptor)
        self._begin(Stream(self.last_number, sock, target))
        self.out += frame(OPEN, self.last_number, amount(target))

    def _begin(self, stream: Stream) -> None:
        self.streams[stream.number] = self.by_descriptor[stream.descriptor] = stream
        self._want(stream)

    def _take(self, stream: Stream) -> None:
        """Read from a connection's socket, and send it to the other end."""
        try:
            data = stream.sock.recv(min(PIECE, stream.credit))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._reset(stream, error)
            return
        if data:
            stream.credit -= len(data)
            kind, content = self._packed(stream, data)
            self.flying += len(content)
            self.out += frame(kind, stream.number, content)
            self._want(stream)
        else:
            stream.has_read_all = True
            self.out += frame(END, stream.number)
            self._finish(stream)

    def _packed(self, stream: Stream, data: bytes) -> Any:
        """Return the kind and the content of a frame; what does not become smaller is left."""
        if not self.packs or len(data) < LEAST_PACKED:
            return DATA, data
        if stream.unpacked:
            stream.unpacked -= 1
            return DATA, data
        packed = pack(data)
        if len(packed) > len(data) * 0.9:
            stream.unpacked = UNPACKED_PIECES
            return DATA, data
        return PACKED, packed

    def _flush(self, stream: Stream) -> None:
        """Write what is pending to a connection's socket."""
        try:
            sent = stream.sock.send(stream.pending)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break_off(stream, error)
            return
        del stream.pending[:sent]
        stream.owed += sent
        if stream.owed >= WINDOW // 2:
            self.out += frame(CREDIT, stream.number, amount(stream.owed))
            stream.owed = 0
        self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        """Close the directions of a connection that have ended."""
        if stream.has_all and not stream.pending and not stream.is_shut:
            stream.is_shut = True
            try:
                stream.sock.shutdown(socket.SHUT_WR)
            except OSError:  # the peer is gone; reading will tell
                pass
        if stream.has_read_all and stream.is_shut:
            self._forget(stream)
        else:
            self._want(stream)

    def _break_off(self, stream: Stream, error: OSError) -> None:
        """Reset a connection whose peer takes nothing more; what it has sent goes first."""
        is_read = False
        while not is_read and stream.number in self.streams:
            before = stream.credit
            if before and not stream.has_read_all:
                self._take(stream)
            is_read = stream.credit == before
        if stream.number in self.streams:
            self._reset(stream, error)

    def _reset(self, stream: Stream, error: OSError) -> None:
        self.out += frame(RESET, stream.number, _reason(error))
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self.sources.want(stream.descriptor, None)
        self.poll.want(stream.descriptor, None)
        stream.sock.close()
        del self.streams[stream.number], self.by_descriptor[stream.descriptor]

    def _send(self) -> None:
        with memoryview(self.out) as view:
            try:
                sent = os.write(self.writer, view[:READ])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise WireError("the pipe to the other end is closed") from error
        del self.out[:sent]

    def _receive(self) -> None:
        try:
            data = os.read(self.reader, READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise WireError("the pipe from the other end broke") from error
        if not data:
            raise WireError("the other end has ended")
        self.heard = time.monotonic()
        for kind, number, content in self.decoder.feed(data):
            self._obey(kind, number, content)
        if self.received >= ACKNOWLEDGED:
            self.out += frame(CREDIT, 0, amount(self.received))
            self.received = 0

    def _obey(self, kind: int, number: int, content: bytes) -> None:
        stream = self.streams.get(number)
        if kind in (DATA, PACKED):
            self.received += len(content)
        if kind == OPEN and self.connect is not None:
            self._open(number, number_of(content))
        elif kind == PING and not self.listeners:
            self.out += frame(PING)
        elif kind == CREDIT and not number:  # of the pipe, whatever became of the connections
            self.flying -= number_of(content)
        elif stream is None:  # it was reset here meanwhile
            return
        elif kind in (DATA, PACKED):
            self._give(stream, unpack(content) if kind == PACKED else content)
        elif kind == END:
            stream.has_some = stream.has_all = True
            self._finish(stream)
        elif kind == CREDIT:
            stream.credit += number_of(content)
            self._want(stream)
        elif kind == RESET:
            if self.on_refused is not None and not stream.has_some:
                self.on_refused(stream.target, content.decode("utf-8", "replace"))
            stream.has_all = stream.has_read_all = True  # what came before is written still
            self._finish(stream)

    def _give(self, stream: Stream, data: bytes) -> None:
        stream.has_some = True
        stream.pending += data
        if len(stream.pending) > WINDOW:
            raise WireError("the other end sends more than it may")
        self._flush(stream)

    def _open(self, number: int, target: int) -> None:
        assert self.connect is not None
        try:
            self._begin(Stream(number, self.connect(target), target))
        except OSError as error:
            self.out += frame(RESET, number, _reason(error))


def _reason(error: OSError) -> bytes:
    return (error.strerror or str(error)).encode("utf-8", "replace")[:200]
