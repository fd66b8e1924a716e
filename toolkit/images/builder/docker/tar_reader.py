"""Read untrusted tar archives: always to an end, in bounded memory, with one class of error.

``tarfile`` believes what a header says: it takes as much memory for a long name as the header
wants, goes back where a size is negative, and passes on whatever Python raises for numbers that do
not fit. So it gets its bytes from a ``_Tape``, which limits what it may read for headers, and its
errors are translated here. Compressed archives are read forward only, and only as far as a
plausible compression ratio allows.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from toolkit.errors import MalformedInputError
from toolkit.files import open_regular

_CHUNK = 1 << 20
_MAX_MEMBERS = 50_000  # an image has a handful for each layer
_MAX_HEADERS = 64 << 20  # bytes of all headers together
_MAX_EXTENDED = 8 << 10  # bytes of a header with a long name; paths have at most 4,096
_MAX_RATIO, _FREE = 300, 4 << 30  # of compression, and the bytes for which it does not matter
_MAX_MEMORY = 256 << 20  # of a decompressor; the best level of xz needs 65 MiB
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, struct.error)
_NUMBERS = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)


class _Tape(io.RawIOBase):
    """Bytes that are read forward only, with a limit on the bytes of headers.

    Args:
        stream: The plain bytes.
        source: The compressed file that they come from; its position tells the ratio.
    """

    def __init__(self, stream: Any, *, source: Any = None) -> None:
        self._stream, self._source = stream, source
        self._at = 0
        self.headers = _MAX_HEADERS

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or position < self._at:
            raise tarfile.ReadError(
                f"a member begins at byte {position}, before the end of another"
            )
        if self._source is None and self._stream.seekable():
            self._stream.seek(position)
            self._at = position
        while self._at < position:
            if not self.data(min(_CHUNK, position - self._at)):
                break
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return bytes of a header."""
        if not 0 <= size <= self.headers:
            raise tarfile.ReadError(f"a header at byte {self._at} has {size} bytes")
        self.headers -= size
        return self.data(size)

    def data(self, size: int) -> bytes:
        """Return bytes of a member."""
        data: bytes = self._stream.read(size)
        self._at += len(data)
        if self._source is not None and self._at > _FREE + _MAX_RATIO * self._source.tell():
            raise tarfile.ReadError(f"it unpacks to more than {_MAX_RATIO} times its size")
        return data


class _Header(tarfile.TarInfo):
    """A header with a plausible size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in _EXTENDED and header.size > _MAX_EXTENDED):
            raise tarfile.ReadError(f"a header says that {header.size} bytes follow")
        return header


class Archive:
    """An archive that is being read; its members come in their order, once."""

    def __init__(self, tape: _Tape) -> None:
        self._tape = tape
        self._tar = tarfile.TarFile(fileobj=tape, mode="r", tarinfo=_Header)

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield each member; its data can be read before the next."""
        last = -1
        for number, member in enumerate(self._tar):
            if member.offset <= last or member.size < 0 or member.issparse():
                raise tarfile.ReadError(f"the member at byte {member.offset} cannot be there")
            if number >= _MAX_MEMBERS:
                raise tarfile.ReadError(f"it has more than {_MAX_MEMBERS} members")
            last = member.offset
            yield member

    def text(self, member: tarfile.TarInfo, maximum: int = 16 << 20) -> bytes:
        """Return the data of a small member."""
        if member.size > maximum:
            raise tarfile.ReadError(f"its {member.name[:100]!r} has {member.size} bytes")
        return b"".join(self.chunks(member))

    def chunks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield the data of a member in chunks."""
        self._tape.seek(member.offset_data)
        left = member.size
        while left:
            chunk = self._tape.data(min(_CHUNK, left))
            if not chunk:
                raise tarfile.ReadError(f"it is cut off within {member.name[:100]!r}")
            left -= len(chunk)
            yield chunk


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn every error of a malformed archive into one that names the archive.

    Args:
        place: The archive's name, for the message.

    Raises:
        MalformedInputError: The archive does not follow its format.
        OSError: It cannot be read.
    """
    try:
        yield
    except MalformedInputError as error:
        raise MalformedInputError(error.cause, place=error.place or place) from None
    except (*_BROKEN, *_NUMBERS) as error:
        raise MalformedInputError(f"it is no complete archive: {error}", place=place) from None
    except OSError as error:
        if error.errno is not None:
            raise
        # gzip and bz2 report broken data as an OSError without a number.
        raise MalformedInputError(f"it is no complete archive: {error}", place=place) from None


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive, compressed or not; with the errors of ``reading``."""
    with reading(str(path)), open_regular(path) as raw:
        head = raw.read(1 << 16)
        raw.seek(0)
        plain = _decompress(raw, head)
        yield Archive(_Tape(raw) if plain is None else _Tape(plain, source=raw))


def _decompress(raw: IO[bytes], head: bytes) -> Any:
    """Return a file object that decompresses a file, or None if it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    if head.startswith(b"\xfd7zXZ\0"):
        # The file says how much memory it needs, and LZMAFile takes that much.
        lzma.LZMADecompressor(memlimit=_MAX_MEMORY).decompress(head, max_length=1)
        return lzma.LZMAFile(raw)
    return None


class _Chunks(io.RawIOBase):
    """Chunks, to be read as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        taken = self._rest[: len(buffer)]
        self._rest = self._rest[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)


def read_stream(chunks: Iterable[bytes]) -> Archive:
    """Return an archive that arrives in chunks; use it within ``reading``."""
    return Archive(_Tape(io.BufferedReader(_Chunks(chunks), _CHUNK)))


def write_member(archive: tarfile.TarFile, name: str, size: int, chunks: Iterable[bytes]) -> None:
    """Add a file of known size to an archive."""
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, io.BufferedReader(_Chunks(chunks), _CHUNK))
