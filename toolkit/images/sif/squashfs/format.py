"""Parse and write the superblock of a squashfs and its metadata, which is in blocks of 8 KiB.

A table is a stream of bytes, cut into blocks of 8 KiB. Each block follows a header of two bytes
with its stored size. A reference into a table is the position of a block, and an offset within the
block after decompression.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from toolkit.images.sif import SquashfsError

SUPERBLOCK_SIZE = 96
MKFS_TIME_AT = 8  # where a superblock has the time of its making
NONE = 2**64 - 1  # the position of a table that does not exist
METADATA_BLOCK = 8192
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_STRIDE = METADATA_BLOCK + 2  # a full block with its header
_UNCOMPRESSED = 0x8000
_ZSTD = 6
_BLOCK_SIZES = tuple(1 << power for power in range(12, 21))  # of data: 4 KiB to 1 MiB
# Bytes of one table. The largest known images have 30 MiB of inodes.
_MOST = 256 << 20
_EXPORTABLE, _NO_FRAGMENTS, _NO_XATTRS = 0x80, 0x10, 0x200


class Reader(NamedTuple):
    """Bounded access to the bytes of a file system.

    Attributes:
        size: the number of bytes.
        read_at: returns the bytes at a position, of a length.
    """

    size: int
    read_at: Callable[[int, int], bytes]

    def __call__(self, position: int, length: int) -> bytes:
        """Return ``length`` bytes at a position.

        Raises:
            SquashfsError: some of them are outside of the file system.
        """
        if not length:
            return b""
        if position < 0 or length < 0 or position + length > self.size:
            raise SquashfsError(
                f"it is cut off: it names {length} bytes at {position} of {self.size}"
            )
        data = self.read_at(position, length)
        if len(data) != length:
            raise SquashfsError(f"it is cut off at byte {position + len(data)}")
        return data


@contextmanager
def damage_errors(part: str) -> Iterator[None]:
    """Turn Python's errors about numbers that do not fit together into a ``SquashfsError``."""
    try:
        yield
    except (struct.error, IndexError, OverflowError) as error:
        raise SquashfsError(f"{part} of it is broken: {error}") from None


class Superblock(NamedTuple):
    """The first 96 bytes, in their order and by the kernel's names.

    Positions are from the beginning of the file system.
    """

    magic: int
    inodes: int
    mkfs_time: int
    block_size: int
    fragments: int
    compression: int
    block_log: int
    flags: int
    ids: int
    major: int
    minor: int
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
        """Parse a superblock.

        Raises:
            SquashfsError: it is of another format or version.
        """
        if len(head) < SUPERBLOCK_SIZE:
            raise SquashfsError("it is shorter than a squashfs can be")
        superblock = cls._make(_SUPERBLOCK.unpack_from(head))
        if (superblock.magic, superblock.major, superblock.minor) != (_MAGIC, 4, 0):
            raise SquashfsError("it is not a squashfs of version 4.0")
        if superblock.block_size not in _BLOCK_SIZES:
            raise SquashfsError(f"its blocks cannot have {superblock.block_size} bytes")
        return superblock

    def pack(self) -> bytes:
        """Pack the superblock with the flags that its tables require."""
        flags = self.flags | _EXPORTABLE
        flags = flags & ~_NO_FRAGMENTS if self.fragments else flags
        flags = flags & ~_NO_XATTRS if self.xattr_table != NONE else flags
        log = self.block_size.bit_length() - 1
        return _SUPERBLOCK.pack(*self._replace(magic=_MAGIC, major=4, flags=flags, block_log=log))


def position_of(reference: int) -> int:
    """Return the position in the stream that a reference points to.

    Raises:
        SquashfsError: no block begins there, or none is so long.
    """
    block, remainder = divmod(reference >> 16, _STRIDE)
    if remainder or reference & 0xFFFF > METADATA_BLOCK:
        raise SquashfsError(f"a reference of it, {reference:#x}, points between two blocks")
    return block * METADATA_BLOCK + (reference & 0xFFFF)


def reference_to(position: int) -> int:
    """Return the reference to a position of a stream."""
    return (position // METADATA_BLOCK * _STRIDE) << 16 | position % METADATA_BLOCK


def encode(stream: bytes | bytearray) -> bytes:
    """Encode a stream as uncompressed blocks of metadata."""
    blocks = (stream[at : at + METADATA_BLOCK] for at in range(0, len(stream), METADATA_BLOCK))
    return b"".join(
        part for block in blocks for part in (struct.pack("<H", len(block) | _UNCOMPRESSED), block)
    )


def decode(table: bytes, compression: int = 0) -> bytes:
    """Decode blocks of metadata to their stream; every block but the last must be full.

    Args:
        table: the blocks.
        compression: that of the superblock, if blocks may be compressed. A reference into such a
            table has no meaning afterwards.

    Raises:
        SquashfsError: a block is compressed otherwise, or shorter than it says.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(table):
        header = int.from_bytes(table[at : at + 2], "little")
        size = header & (_UNCOMPRESSED - 1)
        at += 2 + size
        if at > len(table) or size > METADATA_BLOCK:
            raise SquashfsError("a block of its tables is cut off")
        part = table[at - size : at]
        if not header & _UNCOMPRESSED:
            part = _decompress(part, compression)
        if len(part) < METADATA_BLOCK and at != len(table):
            raise SquashfsError("a block of its tables is too short")
        parts.append(part)
    return b"".join(parts)


def _decompress(block: bytes, compression: int) -> bytes:
    if compression != _ZSTD:
        raise SquashfsError("its tables are compressed")
    import zstandard  # not at the top: printing a definition must not wait for it

    try:
        # A frame may name its size, and the library allocates that much at once.
        size = zstandard.frame_content_size(block)
        if size > METADATA_BLOCK:
            raise SquashfsError(f"a block of its tables would become {size} bytes")
        return zstandard.ZstdDecompressor().decompress(block, max_output_size=METADATA_BLOCK)
    except zstandard.ZstdError as error:
        raise SquashfsError(f"a block of its tables is damaged: {error}") from None


def encode_indexed(stream: bytes | bytearray, position: int) -> tuple[bytes, int]:
    """Encode a table that has an index of its blocks behind it.

    Args:
        stream: the table.
        position: where it will be.

    Returns:
        The blocks with their index, and the position that the index will have.
    """
    blocks = encode(stream)
    count = -(-len(stream) // METADATA_BLOCK)
    index = struct.pack(f"<{count}Q", *(position + number * _STRIDE for number in range(count)))
    return blocks + index, position + len(blocks)


def read_index(read: Reader, position: int, size: int) -> tuple[int, ...]:
    """Read the positions of the blocks that carry ``size`` bytes, from the index at ``position``.

    Raises:
        SquashfsError: the index is outside of the file system, or the table too large.
    """
    if size > _MOST:
        raise SquashfsError(f"one of its tables has {size} bytes")
    count = -(-size // METADATA_BLOCK)
    return struct.unpack(f"<{count}Q", read(position, 8 * count))


def read_stream(read: Reader, start: int, end: int, compression: int = 0) -> bytearray:
    """Read the stream that the blocks from ``start`` to ``end`` carry.

    Raises:
        SquashfsError: they are outside of the file system, damaged, or too large.
    """
    if end < start or end - start > _MOST:
        raise SquashfsError(f"one of its tables cannot lie from {start} to {end}")
    return bytearray(decode(read(start, end - start), compression))
