"""Both ends of a relay: many connections over one pair of pipes.

The end on the node is sent there as source and runs on every Python since 3.6, so this module
imports only the standard library, and has the syntax of that time.

The bytes on the pipes are frames: kind, number of the connection, length, content. Each direction
of a connection has a window: at most ``WINDOW`` bytes are on the way that the other end's socket
has not taken. A connection that is not read thus stops its own sender and no other, and neither
end stores more than that.
"""

import errno
import os
import selectors
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

OPEN, DATA, END, RESET, CREDIT, PING = range(1, 7)
HEADER = struct.Struct(">BII")
PIECE = 16 * 1024  # the longest content of a frame
WINDOW = 256 * 1024  # of one direction of one connection
HIGH = 64 * 1024  # with so much to write, no more is read from sockets: all have the same delay
MOST = 256  # connections at one time; others wait in the queue of the kernel
PING_SECONDS = 15.0  # between two signs of life
SILENCE_SECONDS = 60.0  # without one, the other end is gone
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # of accept(2)
FULL_SECONDS = 1.0  # before the next connection is accepted, if there was no room for one
MOST_NOISE = 64 * 1024  # what a site's own programs may print before the node's end begins

Frame = Tuple[int, int, bytes]


class WireError(Exception):
    """The pipes are closed, or carry something else than frames."""


def frame(kind: int, number: int = 0, content: bytes = b"") -> bytes:
    """Return a frame as it is written."""
    return HEADER.pack(kind, number, len(content)) + content


def greeting(nonce: str) -> bytes:
    """Return what the node's end writes first; what a site's own programs print comes before it."""
    return b"\n\0toolkit relay " + nonce.encode() + b"\n"


class Decoder:
    """Frames out of a stream of bytes.

    Args:
        start: bytes that come before the first frame, and after anything else; empty: none.
    """

    def __init__(self, start: bytes = b"") -> None:
        self.start = start
        self.bytes = bytearray()

    def feed(self, data: bytes) -> List[Frame]:
        """Return the frames that are complete with these bytes.

        Raises:
            WireError: the bytes are no frames.
        """
        self.bytes += data
        if self.start and not self._is_begun():
            return []
        frames, place = [], 0
        while len(self.bytes) - place >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self.bytes, place)
            if not OPEN <= kind <= PING or length > PIECE:
                raise WireError("something else than the relay writes into its pipe")
            begin, place_after = place + HEADER.size, place + HEADER.size + length
            if place_after > len(self.bytes):
                break
            frames.append((kind, number, bytes(self.bytes[begin:place_after])))
            place = place_after
        del self.bytes[:place]
        return frames

    def _is_begun(self) -> bool:
        place = self.bytes.find(self.start)
        if place < 0:
            if len(self.bytes) > MOST_NOISE:
                raise WireError("the node does not start the relay, but prints something else")
            return False
        del self.bytes[: place + len(self.start)]
        self.start = b""
        return True


class Stream:
    """One connection at one end.

    Attributes:
        pending: bytes of the other end that the socket has not taken yet.
        credit: bytes that may be sent to the other end.
        owed: bytes that the socket has taken and the other end has no credit for yet.
        has_read_all: the socket's peer sends no more.
        has_all: the other end sends no more.
        has_some: the other end has sent something, so that the server takes the connection.
    """

    def __init__(self, number: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.number, self.sock = number, sock
        self.pending = bytearray()
        self.credit, self.owed = WINDOW, 0
        self.has_read_all = self.has_all = self.has_some = self.is_shut = False

    @property
    def is_done(self) -> bool:
        """Return whether both directions have ended."""
        return self.has_read_all and self.is_shut


class Relay:
    """One end.

    Args:
        reader, writer: descriptors of the two pipes.
        listener: whose connections are carried to the other end; None: this end is the node's.
        connect: opens a connection of the node's end; an ``OSError`` is its refusal.
        start: the first bytes from the other end; see ``Decoder``.
        on_refused: is given the reason if the node's end refuses a connection.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        *,
        listener: Optional[socket.socket] = None,
        connect: Optional[Callable[[], socket.socket]] = None,
        start: bytes = b"",
        on_refused: Optional[Callable[[str], Any]] = None,
    ) -> None:
        self.reader, self.writer, self.listener = reader, writer, listener
        self.connect, self.on_refused = connect, on_refused
        self.decoder = Decoder(start)
        self.out = bytearray()
        self.streams: Dict[int, Stream] = {}
        self.last_number, self.accept_after = 0, 0.0
        self.heard = self.pinged = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.wanted: Dict[Any, int] = {}
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)

    @property
    def is_open(self) -> bool:
        """Return whether the other end has begun."""
        return not self.decoder.start

    def turn(self, seconds: float = 1.0) -> None:
        """Wait for something to do, at most for some seconds, and do it.

        Raises:
            WireError: the other end is gone.
        """
        self._want_all()
        for key, events in self.selector.select(seconds):
            self._handle(key.fileobj, key.data, events)
        now = time.monotonic()
        if self.listener is not None and now - self.pinged > PING_SECONDS:
            self.pinged = now
            self.out += frame(PING)
        if now - self.heard > SILENCE_SECONDS:
            raise WireError("the other end gives no sign of life")

    def close(self) -> None:
        """End all connections; the pipes are the caller's."""
        for stream in list(self.streams.values()):
            self._forget(stream)
        self.selector.close()

    def _want_all(self) -> None:
        self._want(self.reader, selectors.EVENT_READ)
        self._want(self.writer, selectors.EVENT_WRITE if self.out else 0)
        if self.listener is not None:
            may_accept = self.is_open and len(self.streams) < MOST
            may_accept = may_accept and time.monotonic() >= self.accept_after
            self._want(self.listener, selectors.EVENT_READ if may_accept else 0)
        for stream in self.streams.values():
            may_read = stream.credit > 0 and not stream.has_read_all and len(self.out) < HIGH
            self._want(
                stream.sock,
                (selectors.EVENT_READ if may_read else 0)
                | (selectors.EVENT_WRITE if stream.pending else 0),
                stream,
            )

    def _want(self, item: Any, events: int, data: Optional[Stream] = None) -> None:
        before = self.wanted.get(item, 0)
        if events == before:
            return
        if not before:
            self.selector.register(item, events, data)
        elif not events:
            self.selector.unregister(item)
        else:
            self.selector.modify(item, events, data)
        self.wanted[item] = events

    def _handle(self, item: Any, stream: Optional[Stream], events: int) -> None:
        if stream is not None:
            if self.streams.get(stream.number) is stream and events & selectors.EVENT_WRITE:
                self._flush(stream)
            if self.streams.get(stream.number) is stream and events & selectors.EVENT_READ:
                self._take(stream)
        elif item is self.listener:
            self._accept()
        elif item == self.reader:
            self._receive()
        else:
            self._send()

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            sock, _ = self.listener.accept()
        except OSError as error:  # it has left the queue again, or stays in it
            if error.errno in NO_ROOM:
                self.accept_after = time.monotonic() + FULL_SECONDS
            return
        self.last_number += 1
        self.streams[self.last_number] = Stream(self.last_number, sock)
        self.out += frame(OPEN, self.last_number)

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
            self.out += frame(DATA, stream.number, data)
        else:
            stream.has_read_all = True
            self.out += frame(END, stream.number)
            self._finish(stream)

    def _flush(self, stream: Stream) -> None:
        """Write what is pending to a connection's socket."""
        try:
            sent = stream.sock.send(stream.pending) if stream.pending else 0
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._reset(stream, error)
            return
        del stream.pending[:sent]
        stream.owed += sent
        if stream.owed >= WINDOW // 2:
            self.out += frame(CREDIT, stream.number, struct.pack(">I", stream.owed))
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
        if stream.is_done:
            self._forget(stream)

    def _reset(self, stream: Stream, error: OSError) -> None:
        self.out += frame(RESET, stream.number, _reason(error))
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._want(stream.sock, 0)
        self.wanted.pop(stream.sock, None)
        stream.sock.close()
        self.streams.pop(stream.number, None)

    def _send(self) -> None:
        try:
            sent = os.write(self.writer, self.out[: 4 * PIECE])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise WireError("the pipe to the other end is closed") from error
        del self.out[:sent]

    def _receive(self) -> None:
        try:
            data = os.read(self.reader, 4 * PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise WireError("the pipe from the other end broke") from error
        if not data:
            raise WireError("the other end has ended")
        self.heard = time.monotonic()
        for kind, number, content in self.decoder.feed(data):
            self._obey(kind, number, content)

    def _obey(self, kind: int, number: int, content: bytes) -> None:
        stream = self.streams.get(number)
        if kind == OPEN and self.connect is not None:
            self._open(number)
        elif kind == PING and self.listener is None:
            self.out += frame(PING)
        elif stream is None:  # it was reset here meanwhile
            return
        elif kind == DATA:
            stream.has_some = True
            stream.pending += content
            if len(stream.pending) > WINDOW:
                raise WireError("the other end sends more than it may")
            self._flush(stream)
        elif kind == END:
            stream.has_all = True
            self._finish(stream)
        elif kind == CREDIT and len(content) == 4:
            stream.credit += struct.unpack(">I", content)[0]
        elif kind == RESET:
            self._forget(stream)
            if self.on_refused is not None and not stream.has_some:
                self.on_refused(content.decode("utf-8", "replace"))

    def _open(self, number: int) -> None:
        assert self.connect is not None
        try:
            self.streams[number] = Stream(number, self.connect())
        except OSError as error:
            self.out += frame(RESET, number, _reason(error))


def _reason(error: OSError) -> bytes:
    return (error.strerror or str(error)).encode("utf-8", "replace")[:200]
