"""The tables of a squashfs as streams of bytes: read, and written behind new data.

A stream is cut into metadata blocks of 8 KiB. Each block follows a header of two bytes with its
stored size. A reference into a table is the position of a block, and an offset within the block
after decompression. The layout is that of ``fs/squashfs`` in Linux, version 4.0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from toolkit.images.sif import SquashfsError

SUPERBLOCK_SIZE = 96
MKFS_TIME_AT = 8  # where a superblock has the time of its making
METADATA_BLOCK = 8192
_NONE = 2**64 - 1  # the position of a table that does not exist
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_STRIDE = METADATA_BLOCK + 2  # a full block with its header
_UNCOMPRESSED = 0x8000
_ZSTD = 6
_BLOCK_SIZES = tuple(1 << power for power in range(12, 21))  # of data: 4 KiB to 1 MiB
# Bytes of one table. The largest known images have 30 MiB of inodes.
_MOST = 256 << 20
_EXPORTABLE, _NO_FRAGMENTS, _NO_XATTRS = 0x80, 0x10, 0x200
FRAGMENT = struct.Struct("<QII")  # position, size, unused
XATTR_ID = struct.Struct("<QII")  # reference of the first attribute, count, size
_XATTR_HEADER = struct.Struct("<QII")
_INODE_TIME_AT, _TIME = 8, struct.Struct("<I")  # the time of an inode of any kind


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
        is_inside = 0 <= position <= position + length <= self.size
        data = self.read_at(position, length) if is_inside else b""
        if not is_inside or len(data) != length:
            raise SquashfsError(
                f"it is cut off: it names {length} bytes at {position} of {self.size}"
            )
        return data


@contextmanager
def damage_errors(part: str) -> Iterator[None]:
    """Turn Python's errors about numbers that do not fit together into a ``SquashfsError``."""
    try:
        yield
    except (struct.error, LookupError, OverflowError) as error:
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
        flags = flags & ~_NO_XATTRS if self.xattr_table != _NONE else flags
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


@dataclass
class Tables:
    """The tables of a squashfs as streams.

    Attributes:
        head: its superblock; only what describes the data, the root and the number of inodes is
            used. The rest is computed when the tables are written.
        data_end: the position behind the last byte of data, where the tables begin.
        export: the reference of every inode, by its number.
        xattrs: names and values of extended attributes.
        xattr_ids: the sets of attributes that inodes refer to.
    """

    head: Superblock
    data_end: int
    inodes: bytearray
    directories: bytearray
    fragments: bytearray
    export: bytearray
    ids: bytearray
    xattrs: bytearray
    xattr_ids: bytearray


def read_tables(read: Reader) -> Tables:
    """Read the tables of a squashfs.

    Raises:
        SquashfsError: it is of another format, broken, cut off, or its tables are compressed.
    """

    def read_stream(start: int, end: int, compression: int = 0) -> bytearray:
        if end < start or end - start > _MOST:
            raise SquashfsError(f"one of its tables cannot lie from {start} to {end}")
        return bytearray(decode(read(start, end - start), compression))

    def first_block(index: int) -> int:
        """Return where a table begins: behind its blocks is an index of them."""
        return int.from_bytes(read(index, 8), "little")

    head = Superblock.parse(read(0, min(SUPERBLOCK_SIZE, read.size)))
    if head.export_table == _NONE:
        raise SquashfsError("it has no table of its inodes")
    exports = first_block(head.export_table)
    directories_end, fragments = exports, bytearray()
    if head.fragments:
        directories_end = first_block(head.fragment_table)
        fragments = read_stream(directories_end, head.fragment_table, head.compression)
    xattrs, xattr_ids = bytearray(), bytearray()
    if head.xattr_table != _NONE:
        start, _, _ = _XATTR_HEADER.unpack(read(head.xattr_table, _XATTR_HEADER.size))
        end = first_block(head.xattr_table + _XATTR_HEADER.size)
        xattrs, xattr_ids = read_stream(start, end), read_stream(end, head.xattr_table)
    return Tables(
        head=head,
        data_end=head.inode_table,
        inodes=read_stream(head.inode_table, head.directory_table),
        directories=read_stream(head.directory_table, directories_end),
        fragments=fragments,
        export=read_stream(exports, head.export_table),
        ids=read_stream(first_block(head.id_table), head.id_table),
        xattrs=xattrs,
        xattr_ids=xattr_ids,
    )


def write_tables(tables: Tables) -> tuple[bytes, bytes]:
    """Return the superblock, and the bytes that follow the data from ``data_end`` on."""
    out = bytearray()

    def put(stream: bytearray) -> int:
        start = tables.data_end + len(out)
        out.extend(encode(stream))
        return start

    def put_indexed(stream: bytearray, header: bytes = b"") -> int:
        start = put(stream)
        end = tables.data_end + len(out)
        blocks = range(start, end, _STRIDE)
        out.extend(header + struct.pack(f"<{len(blocks)}Q", *blocks))
        return end

    # The order is that of mksquashfs. Keyword arguments are evaluated from the first to the last.
    head = tables.head._replace(
        inode_table=put(tables.inodes),
        directory_table=put(tables.directories),
        fragment_table=put_indexed(tables.fragments),
        export_table=put_indexed(tables.export),
        id_table=put_indexed(tables.ids),
        xattr_table=_NONE,
    )
    if tables.xattr_ids:
        header = _XATTR_HEADER.pack(put(tables.xattrs), len(tables.xattr_ids) // XATTR_ID.size, 0)
        head = head._replace(xattr_table=put_indexed(tables.xattr_ids, header))
    superblock = head._replace(
        inodes=len(tables.export) // 8,
        fragments=len(tables.fragments) // FRAGMENT.size,
        ids=len(tables.ids) // 4,
        bytes_used=tables.data_end + len(out),
    )
    return superblock.pack(), bytes(out)


def settle_times(tables: Tables, since: int, time: int) -> None:
    """Set every time in the inodes that is ``since`` or later to ``time``.

    So two file systems that were packed of the same contents at different times become equal.

    Raises:
        SquashfsError: an inode is outside of its table.
    """
    for (reference,) in struct.iter_unpack("<Q", tables.export):
        at = position_of(reference) + _INODE_TIME_AT
        if at + _TIME.size > len(tables.inodes):
            raise SquashfsError("an inode of it is cut off")
        if _TIME.unpack_from(tables.inodes, at)[0] >= since:
            _TIME.pack_into(tables.inodes, at, time)
