"""The tables of a squashfs: read, changed by grafts, and written behind new data."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from toolkit.images.sif import SquashfsError
from toolkit.images.sif.squashfs.format import (
    NONE,
    SUPERBLOCK_SIZE,
    Reader,
    Superblock,
    damage_errors,
    encode,
    encode_indexed,
    position_of,
    read_index,
    read_stream,
    reference_to,
)

_FRAGMENT = struct.Struct("<QII")  # position, size, unused
_XATTR_ID = struct.Struct("<QII")  # reference of the first attribute, count, size
_XATTR_HEADER = struct.Struct("<QII")
_OUT_OF_LINE = 0x100  # the value of an attribute is a reference to the real value
_INODE_TIME_AT, _TIME = 8, struct.Struct("<I")  # the time of an inode of any kind


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
    with damage_errors("a table"):
        return _read_tables(read)


def _read_tables(read: Reader) -> Tables:
    head = Superblock.parse(read(0, min(SUPERBLOCK_SIZE, read.size)))
    if head.export_table == NONE:
        raise SquashfsError("it has no table of its inodes")
    fragment_blocks = read_index(read, head.fragment_table, _FRAGMENT.size * head.fragments)
    export_blocks = read_index(read, head.export_table, 8 * head.inodes)
    id_blocks = read_index(read, head.id_table, 4 * head.ids)
    directories_end = (*fragment_blocks, *export_blocks)[0]
    fragments = bytearray()
    if head.fragments:
        fragments = read_stream(read, directories_end, head.fragment_table, head.compression)
    xattrs, xattr_ids = _read_xattrs(read, head)
    return Tables(
        head=head,
        data_end=head.inode_table,
        inodes=read_stream(read, head.inode_table, head.directory_table),
        directories=read_stream(read, head.directory_table, directories_end),
        fragments=fragments,
        export=read_stream(read, export_blocks[0], head.export_table),
        ids=read_stream(read, id_blocks[0], head.id_table),
        xattrs=xattrs,
        xattr_ids=xattr_ids,
    )


def _read_xattrs(read: Reader, head: Superblock) -> tuple[bytearray, bytearray]:
    if head.xattr_table == NONE:
        return bytearray(), bytearray()
    start, count, _ = _XATTR_HEADER.unpack(read(head.xattr_table, _XATTR_HEADER.size))
    blocks = read_index(read, head.xattr_table + _XATTR_HEADER.size, _XATTR_ID.size * count)
    if not blocks:
        raise SquashfsError("its table of extended attributes is empty")
    return read_stream(read, start, blocks[0]), read_stream(read, blocks[0], head.xattr_table)


def write_tables(tables: Tables) -> tuple[bytes, bytes]:
    """Return the superblock, and the bytes that follow the data from ``data_end`` on."""
    out = bytearray()

    def put(part: bytes) -> int:
        position = tables.data_end + len(out)
        out.extend(part)
        return position

    def put_indexed(stream: bytearray) -> int:
        part, index = encode_indexed(stream, tables.data_end + len(out))
        put(part)
        return index

    # The order is that of mksquashfs. Keyword arguments are evaluated from the first to the last.
    head = tables.head._replace(
        inode_table=put(encode(tables.inodes)),
        directory_table=put(encode(tables.directories)),
        fragment_table=put_indexed(tables.fragments),
        export_table=put_indexed(tables.export),
        id_table=put_indexed(tables.ids),
        xattr_table=NONE,
    )
    if tables.xattr_ids:
        start = put(encode(tables.xattrs))
        position = tables.data_end + len(out)
        part, index = encode_indexed(tables.xattr_ids, position)
        put(part[: index - position])
        header = _XATTR_HEADER.pack(start, len(tables.xattr_ids) // _XATTR_ID.size, 0)
        head = head._replace(xattr_table=put(header + part[index - position :]))
    superblock = head._replace(
        inodes=len(tables.export) // 8,
        fragments=len(tables.fragments) // _FRAGMENT.size,
        ids=len(tables.ids) // 4,
        bytes_used=tables.data_end + len(out),
    )
    return superblock.pack(), bytes(out)


def append_fragments(base: Tables, layer: Tables, shift: int) -> int:
    """Append the layer's fragments with data moved by ``shift``. Return the number of the first."""
    first = len(base.fragments) // _FRAGMENT.size
    for position, size, _ in _FRAGMENT.iter_unpack(bytes(layer.fragments)):
        base.fragments += _FRAGMENT.pack(position + shift, size, 0)
    return first


def merge_ids(base: Tables, layer: Tables) -> list[int]:
    """Add the layer's owners to the base. Return the base's index of each of them."""
    indexes: dict[int, int] = {}
    for index, (value,) in enumerate(struct.iter_unpack("<I", bytes(base.ids))):
        indexes.setdefault(value, index)
    merged: list[int] = []
    for (value,) in struct.iter_unpack("<I", bytes(layer.ids)):
        if value not in indexes:
            indexes[value] = len(base.ids) // 4
            base.ids += struct.pack("<I", value)
        merged.append(indexes[value])
    if len(base.ids) // 4 > 0xFFFF:
        raise SquashfsError("it has more than 65,535 owners")
    return merged


def append_xattrs(base: Tables, layer: Tables) -> int:
    """Append the layer's extended attributes. Return the number of its first set of them."""
    first, shift = len(base.xattr_ids) // _XATTR_ID.size, len(base.xattrs)
    attributes = bytearray(layer.xattrs)
    moved: set[int] = set()
    for start, count, size in _XATTR_ID.iter_unpack(bytes(layer.xattr_ids)):
        at = position_of(start)
        base.xattr_ids += _XATTR_ID.pack(reference_to(at + shift), count, size)
        for _ in range(count):
            if at in moved:
                raise SquashfsError("two sets of its extended attributes overlap")
            moved.add(at)
            at = _move_xattr(attributes, at, shift)
    base.xattrs += attributes
    return first


def _move_xattr(stream: bytearray, at: int, shift: int) -> int:
    """Adapt the attribute at ``at`` if its value is elsewhere. Return the position behind it."""
    kind, name_size = struct.unpack_from("<HH", stream, at)
    at += 4 + name_size
    (value_size,) = struct.unpack_from("<I", stream, at)
    if kind & _OUT_OF_LINE:
        (target,) = struct.unpack_from("<Q", stream, at + 4)
        struct.pack_into("<Q", stream, at + 4, reference_to(position_of(target) + shift))
    return int(at + 4 + value_size)


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
