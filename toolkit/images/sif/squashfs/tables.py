"""Everything of a squashfs but its data: read from one, changed by a graft, and written to the end of the next."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from toolkit.images.sif.squashfs.format import (
    NONE,
    SUPERBLOCK_SIZE,
    Read,
    SquashfsError,
    Superblock,
    encoded,
    index_of,
    indexed,
    linear,
    reading,
    reference,
    stream,
)

FRAGMENT = struct.Struct("<QII")  # position, size, unused
_XATTR_ID = struct.Struct("<QII")  # reference of the first, count, size
_XATTR_HEADER = struct.Struct("<QII")
_OUT_OF_LINE = 0x100  # the value of an attribute is a reference to it


@dataclass
class Tables:
    """The tables of a squashfs as streams.

    Attributes:
        head: its superblock; of it only what describes the data, the root and the count of inodes is believed.
        data_end: the position behind the last byte of data; what follows are the tables.
        export: the reference of every inode, by its number.
        xattrs: names and values; ``xattr_ids``: which of them an inode has.
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


def read_tables(read: Read) -> Tables:
    """Read the tables of a squashfs.

    Raises:
        SquashfsError: it is something else, broken, cut off, or its tables are compressed.
    """
    with reading("a table"):
        return _tables(read)


def _tables(read: Read) -> Tables:
    head = Superblock.parse(read(0, min(SUPERBLOCK_SIZE, read.size)))
    if head.export_table == NONE:
        raise SquashfsError("it has no table of its inodes")
    fragment_blocks = index_of(read, head.fragment_table, FRAGMENT.size * head.fragments)
    export_blocks = index_of(read, head.export_table, 8 * head.inodes)
    id_blocks = index_of(read, head.id_table, 4 * head.ids)
    directories_end = (*fragment_blocks, *export_blocks)[0]
    fragments_at, of_fragments = (directories_end, head.compression) if head.fragments else (0, 0)
    xattrs, xattr_ids = _read_xattrs(read, head)
    return Tables(
        head=head,
        data_end=head.inode_table,
        inodes=stream(read, head.inode_table, head.directory_table),
        directories=stream(read, head.directory_table, directories_end),
        fragments=stream(
            read, fragments_at, head.fragment_table if fragments_at else 0, of_fragments
        ),
        export=stream(read, export_blocks[0], head.export_table),
        ids=stream(read, id_blocks[0], head.id_table),
        xattrs=xattrs,
        xattr_ids=xattr_ids,
    )


def _read_xattrs(read: Read, head: Superblock) -> tuple[bytearray, bytearray]:
    if head.xattr_table == NONE:
        return bytearray(), bytearray()
    start, count, _ = _XATTR_HEADER.unpack(read(head.xattr_table, _XATTR_HEADER.size))
    blocks = index_of(read, head.xattr_table + _XATTR_HEADER.size, _XATTR_ID.size * count)
    if not blocks:
        raise SquashfsError("its table of extended attributes is empty")
    return stream(read, start, blocks[0]), stream(read, blocks[0], head.xattr_table)


def written(tables: Tables) -> tuple[bytes, bytes]:
    """The superblock, and what has to follow the data from ``data_end`` on."""
    out = bytearray()

    def put(part: bytes) -> int:
        position = tables.data_end + len(out)
        out.extend(part)
        return position

    def put_indexed(stream: bytearray) -> int:
        part, index = indexed(stream, tables.data_end + len(out))
        put(part)
        return index

    head = tables.head
    inode_table, directory_table = put(encoded(tables.inodes)), put(encoded(tables.directories))
    fragment_table, export_table, id_table = (
        put_indexed(tables.fragments),
        put_indexed(tables.export),
        put_indexed(tables.ids),
    )
    xattr_table = NONE
    if tables.xattr_ids:
        start = put(encoded(tables.xattrs))
        part, index = indexed(tables.xattr_ids, tables.data_end + len(out))
        blocks = index - (tables.data_end + len(out))
        put(part[:blocks])
        xattr_table = put(
            _XATTR_HEADER.pack(start, len(tables.xattr_ids) // _XATTR_ID.size, 0) + part[blocks:]
        )
    superblock = Superblock(
        inodes=len(tables.export) // 8,
        mkfs_time=head.mkfs_time,
        block_size=head.block_size,
        fragments=len(tables.fragments) // FRAGMENT.size,
        compression=head.compression,
        flags=head.flags,
        ids=len(tables.ids) // 4,
        root=head.root,
        bytes_used=tables.data_end + len(out),
        id_table=id_table,
        xattr_table=xattr_table,
        inode_table=inode_table,
        directory_table=directory_table,
        fragment_table=fragment_table,
        export_table=export_table,
    )
    return superblock.pack(), bytes(out)


def add_fragments(base: Tables, layer: Tables, shift: int) -> int:
    """Append the layer's fragments, whose data moved by ``shift``; the number of the first."""
    first = len(base.fragments) // FRAGMENT.size
    for position, size, _ in FRAGMENT.iter_unpack(bytes(layer.fragments)):
        base.fragments += FRAGMENT.pack(position + shift, size, 0)
    return first


def add_ids(base: Tables, layer: Tables) -> list[int]:
    """Make the layer's owners known to the base; where each of them is now."""
    known: dict[int, int] = {}
    for index, (value,) in enumerate(struct.iter_unpack("<I", bytes(base.ids))):
        known.setdefault(value, index)
    found: list[int] = []
    for (value,) in struct.iter_unpack("<I", bytes(layer.ids)):
        if value not in known:
            known[value] = len(base.ids) // 4
            base.ids += struct.pack("<I", value)
        found.append(known[value])
    if len(base.ids) // 4 > 0xFFFF:
        raise SquashfsError("it has more than 65,535 owners")
    return found


def add_xattrs(base: Tables, layer: Tables) -> int:
    """Append the layer's extended attributes; the number of its first set of them."""
    first, moved = len(base.xattr_ids) // _XATTR_ID.size, len(base.xattrs)
    attributes = bytearray(layer.xattrs)
    mended: set[int] = set()
    for start, count, size in _XATTR_ID.iter_unpack(bytes(layer.xattr_ids)):
        at = linear(start)
        base.xattr_ids += _XATTR_ID.pack(reference(at + moved), count, size)
        for _ in range(count):
            if at in mended:
                raise SquashfsError("two sets of its extended attributes overlap")
            mended.add(at)
            at = _moved_xattr(attributes, at, moved)
    base.xattrs += attributes
    return first


def _moved_xattr(stream: bytearray, at: int, moved: int) -> int:
    """Mend the attribute at ``at``, if its value is elsewhere; return the position behind it."""
    kind, name_size = struct.unpack_from("<HH", stream, at)
    at += 4 + name_size
    (value_size,) = struct.unpack_from("<I", stream, at)
    if kind & _OUT_OF_LINE:
        (target,) = struct.unpack_from("<Q", stream, at + 4)
        struct.pack_into("<Q", stream, at + 4, reference(linear(target) + moved))
    return int(at + 4 + value_size)
