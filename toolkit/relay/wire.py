"""Both ends of a relay: many connections over one pair of pipes.

The end on the node is sent there as source and runs on every Python since 3.6, so this module
imports only the standard library, and has the syntax of that time.

The bytes on the pipes are frames: kind, number of the connection, length, content. Each direction
of a connection has a window: at most ``WINDOW`` bytes are on the way that the other end's socket
has not taken. A connection that is not read thus stops its own sender and no other, and neither
end stores more than that. The pipe has a window, too: at most ``FLIGHT`` bytes are in it and in the
programs that it leads through, so that what many connections send delays a small request as little
as what one does.
"""

import struct
import zlib
from typing import List, Tuple

# CREDIT of connection 0 is of the pipe; PACKED is DATA that zlib has compressed.
OPEN, DATA, END, RESET, CREDIT, PING, PACKED = range(1, 8)
HEADER = struct.Struct(">BII")
AMOUNT = struct.Struct(">I")
PIECE = 32 * 1024  # the longest content of a frame
WINDOW = 256 * 1024  # of one direction of one connection
FLIGHT = 128 * 1024  # of one direction of the pipe
ACKNOWLEDGED = FLIGHT // 4  # after so many bytes, the other end gets credit for the pipe
MOST_NOISE = 64 * 1024  # what a site's own programs may print before the node's end begins

Frame = Tuple[int, int, bytes]


class WireError(Exception):
    """The pipes are closed, or carry something else than frames."""


def frame(kind: int, number: int = 0, content: bytes = b"") -> bytes:
    """Return a frame as it is written."""
    return HEADER.pack(kind, number, len(content)) + content


def amount(number: int) -> bytes:
    """Return a number as the content of a frame."""
    return AMOUNT.pack(number)


def number_of(content: bytes) -> int:
    """Return the number that is the content of a frame.

    Raises:
        WireError: it is none.
    """
    if len(content) != AMOUNT.size:
        raise WireError("a frame without its number came from the other end")
    number: int = AMOUNT.unpack(content)[0]
    return number


def pack(data: bytes) -> bytes:
    """Return bytes compressed in the fastest way."""
    return zlib.compress(data, 1)


def unpack(content: bytes) -> bytes:
    """Return what ``pack`` compressed.

    Raises:
        WireError: it is not that, or longer than the content of a frame.
    """
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(content, PIECE)
    except zlib.error as error:
        raise WireError("the pipe changes what it carries") from error
    if not decompressor.eof:
        raise WireError("the other end sends more than it may")
    return data


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
        self.rest = b""

    def feed(self, data: bytes) -> List[Frame]:
        """Return the frames that are complete with these bytes.

        Raises:
            WireError: the bytes are no frames.
        """
        data = self.rest + data
        if self.start:
            data = self._begin(data)
        frames, place = [], 0
        while not self.start and len(data) - place >= HEADER.size:
            kind, number, length = HEADER.unpack_from(data, place)
            if not OPEN <= kind <= PACKED or length > PIECE:
                raise WireError("something else than the relay writes into its pipe")
            end = place + HEADER.size + length
            if end > len(data):
                break
            frames.append((kind, number, data[place + HEADER.size : end]))
            place = end
        self.rest = data[place:]
        return frames

    def _begin(self, data: bytes) -> bytes:
        """Return what follows the first bytes, once they have come; until then all that came."""
        place = data.find(self.start)
        if place < 0:
            if len(data) > MOST_NOISE:
                raise WireError("the node does not start the relay, but prints something else")
            return data
        rest = data[place + len(self.start) :]
        self.start = b""
        return rest
