"""The pieces that a squashfs is made of: its superblock, and streams of metadata in blocks of 8 KiB."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit.errors import MalformedInputError
from toolkit.model.base import Model

SUPERBLOCK_SIZE = 96
MKFS_TIME_AT = 8  # where a superblock says when it was made
NONE = 2**64 - 1  # the position of a table that is not there
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_BLOCK = 8192  # bytes of a stream in one block of metadata
_STRIDE = _BLOCK + 2  # the same with its header
_UNCOMPRESSED = 0x8000
_ZSTD = 6
_BLOCK_SIZES = tuple(1 << power for power in range(12, 21))  # of data: 4 KiB to 1 MiB
# Bytes of one table. The largest images that are known have 30 MiB of inodes.
_MOST = 256 << 20
_EXPORTABLE, _NO_FRAGMENTS, _NO_XATTRS = 0x80, 0x10, 0x200


class SquashfsError(MalformedInputError):
    """This is not a squashfs, or not one that can be grafted; the message says why."""


@dataclass(frozen=True)
class Read:
    """The bytes of a file system, of which no more is ever asked for than there is.

    Attributes:
        size: how many there are.
        bytes_at: returns those at a position, of a length.
    """

    size: int
    bytes_at: Callable[[int, int], bytes]

    def __call__(self, position: int, length: int) -> bytes:
        """Return the bytes at a position.

        Raises:
            SquashfsError: some of them are not there.
        """
        if not length:
            return b""
        if position < 0 or length < 0 or position + length > self.size:
            raise SquashfsError(
                f"it is cut off: it names {length} bytes at {position} of {self.size}"
            )
        found = self.bytes_at(position, length)
        if len(found) != length:
            raise SquashfsError(f"it is cut off at byte {position + len(found)}")
        return found


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what Python says of numbers that do not fit together into a ``SquashfsError``."""
    try:
        yield
    except (struct.error, IndexError, OverflowError) as error:
        raise SquashfsError(f"{what} of it is broken: {error}") from None


class Superblock(Model, frozen=True, kw_only=True):
    """The first 96 bytes, by the names of the kernel. Positions are from the beginning of the file system."""

    inodes: int
    mkfs_time: int
    block_size: int
    fragments: int
    compression: int
    flags: int
    ids: int
    root: int
    bytes_used: int
    id_table: int
    xattr_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int

    @classmethod
    def parse(cls, head: bytes) -> Superblock:
        """Read a superblock.

        Raises:
            SquashfsError: it is of something else, or of another version.
        """
        if len(head) < SUPERBLOCK_SIZE:
            raise SquashfsError("it is shorter than a squashfs can be")
        fields = _SUPERBLOCK.unpack_from(head)
        if fields[0] != _MAGIC or fields[9:11] != (4, 0):
            raise SquashfsError("it is no squashfs of version 4.0")
        if fields[3] not in _BLOCK_SIZES:
            raise SquashfsError(f"its blocks cannot have {fields[3]} bytes")
        (inodes, mkfs_time, block_size, fragments), (compression, _, flags, ids) = (
            fields[1:5],
            fields[5:9],
        )
        (
            root,
            used,
            id_table,
            xattr_table,
            inode_table,
            directory_table,
            fragment_table,
            export_table,
        ) = fields[11:]
        return cls(
            inodes=inodes,
            mkfs_time=mkfs_time,
            block_size=block_size,
            fragments=fragments,
            compression=compression,
            flags=flags,
            ids=ids,
            root=root,
            bytes_used=used,
            id_table=id_table,
            xattr_table=xattr_table,
            inode_table=inode_table,
            directory_table=directory_table,
            fragment_table=fragment_table,
            export_table=export_table,
        )

    def pack(self) -> bytes:
        flags = self.flags | _EXPORTABLE
        flags = flags & ~_NO_FRAGMENTS if self.fragments else flags
        flags = flags & ~_NO_XATTRS if self.xattr_table != NONE else flags
        positions = (
            self.id_table,
            self.xattr_table,
            self.inode_table,
            self.directory_table,
            self.fragment_table,
            self.export_table,
        )
        head = (_MAGIC, self.inodes, self.mkfs_time, self.block_size, self.fragments)
        log = self.block_size.bit_length() - 1
        return _SUPERBLOCK.pack(
            *head,
            self.compression,
            log,
            flags,
            self.ids,
            4,
            0,
            self.root,
            self.bytes_used,
            *positions,
        )


def linear(reference: int) -> int:
    """Return where in the stream a reference points.

    It is the position of a block in the table, and an offset in the block.

    Raises:
        SquashfsError: no block begins there, or none is so long.
    """
    block, between = divmod(reference >> 16, _STRIDE)
    if between or reference & 0xFFFF > _BLOCK:
        raise SquashfsError(f"a reference of it, {reference:#x}, points between two blocks")
    return block * _BLOCK + (reference & 0xFFFF)


def reference(position: int) -> int:
    """The reference to a position of a stream."""
    return (position // _BLOCK * _STRIDE) << 16 | position % _BLOCK


def encoded(stream: bytes | bytearray) -> bytes:
    """A stream as blocks of metadata, not compressed."""
    blocks = (stream[at : at + _BLOCK] for at in range(0, len(stream), _BLOCK))
    return b"".join(
        part for block in blocks for part in (struct.pack("<H", len(block) | _UNCOMPRESSED), block)
    )


def decoded(table: bytes, compression: int = 0) -> bytes:
    """The stream that these blocks carry; every block but the last must be full.

    Args:
        compression: that of the superblock, where blocks may be compressed; a reference into such a table has no meaning afterwards.

    Raises:
        SquashfsError: a block is compressed otherwise, or shorter than it says.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(table):
        header = int.from_bytes(table[at : at + 2], "little")
        size = header & (_UNCOMPRESSED - 1)
        at += 2 + size
        if at > len(table) or size > _BLOCK:
            raise SquashfsError("a block of its tables is cut off")
        part = table[at - size : at]
        if not header & _UNCOMPRESSED:
            part = _decompressed(part, compression)
        if len(part) < _BLOCK and at != len(table):
            raise SquashfsError("a block of its tables is too short")
        parts.append(part)
    return b"".join(parts)


def _decompressed(block: bytes, compression: int) -> bytes:
    if compression != _ZSTD:
        raise SquashfsError("its tables are compressed")
    import zstandard  # not at the top: printing a definition must not wait for it

    try:
        # A frame may name its size, for which memory is taken at once, whatever is asked for.
        size = zstandard.frame_content_size(block)
        if size > _BLOCK:
            raise SquashfsError(f"a block of its tables wants to become {size} bytes")
        return zstandard.ZstdDecompressor().decompress(block, max_output_size=_BLOCK)
    except zstandard.ZstdError as error:
        raise SquashfsError(f"a block of its tables is damaged: {error}") from None


def indexed(stream: bytes | bytearray, position: int) -> tuple[bytes, int]:
    """A table with an index of its blocks behind it, to be put at ``position``; and where the index will be."""
    blocks = encoded(stream)
    count = -(-len(stream) // _BLOCK)
    index = struct.pack(f"<{count}Q", *(position + number * _STRIDE for number in range(count)))
    return blocks + index, position + len(blocks)


def index_of(read: Read, position: int, size: int) -> tuple[int, ...]:
    """Return the positions of the blocks that carry ``size`` bytes, from the index at ``position``.

    Raises:
        SquashfsError: they are not there, or more than the largest image has.
    """
    if size > _MOST:
        raise SquashfsError(f"one of its tables has {size} bytes")
    count = -(-size // _BLOCK)
    return struct.unpack(f"<{count}Q", read(position, 8 * count))


def stream(read: Read, start: int, end: int, compression: int = 0) -> bytearray:
    """Return the stream that the blocks from ``start`` to ``end`` carry.

    Raises:
        SquashfsError: they are not there, damaged, or more than the largest image has.
    """
    if end < start or end - start > _MOST:
        raise SquashfsError(f"one of its tables cannot lie from {start} to {end}")
    return bytearray(decoded(read(start, end - start), compression))
