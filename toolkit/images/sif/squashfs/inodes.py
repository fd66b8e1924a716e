"""Inodes and directories of a squashfs: read from its tables and appended to them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.images.sif import SquashfsError
from toolkit.images.sif.squashfs.format import (
    METADATA_BLOCK,
    damage_errors,
    position_of,
    reference_to,
)
from toolkit.images.sif.squashfs.tables import Tables

DIRECTORY, FILE, SYMLINK, BLOCK_DEVICE, CHARACTER_DEVICE, FIFO, SOCKET = range(1, 8)
_EXTENDED = 7  # is added to the kind of an inode that has the longer form
NO_XATTRS = NO_FRAGMENT = 0xFFFFFFFF

_COMMON = struct.Struct("<4HII")  # kind, mode, owner, group, time, number
_DIRECTORY = struct.Struct("<IIHHI")  # block, links, size, offset, parent
# links, size, block, parent, entries of the index, offset, attributes
_LARGE_DIRECTORY = struct.Struct("<IIIIHHI")
_FILE = struct.Struct("<4I")  # first block, fragment, offset in it, size
# first block, size, bytes of holes, links, fragment, offset in it, attributes
_LARGE_FILE = struct.Struct("<QQQ4I")
_WORD = struct.Struct("<I")
_LINKS_AND_SIZE = struct.Struct("<II")
# number of entries minus one, block of their inodes, number that theirs are relative to
_HEADER = struct.Struct("<III")
_ENTRY = struct.Struct("<HhHH")  # offset of the inode, its number, kind, length of the name minus 1
_INDEX = struct.Struct("<III")  # offset in the directory, block, length of the name minus 1
_MOST_ENTRIES = 256
_EMPTY = 3  # the size of a directory counts these bytes for "." and ".."


@dataclass(frozen=True)
class Inode:
    """An inode of any kind.

    Attributes:
        kind: one of the basic kinds.
        owner, group: indexes in the table of ids.
        start: the position of a file's data, the position of a directory's listing in its stream,
            or the number of a device.
        size: in bytes; for a directory, of its listing.
        sizes: the stored sizes of a file's blocks, or the target of a symbolic link.
    """

    kind: int
    mode: int
    owner: int
    group: int
    time: int
    number: int
    links: int = 1
    start: int = 0
    size: int = 0
    fragment: int = NO_FRAGMENT
    offset: int = 0
    holes: int = 0
    parent: int = 0
    xattrs: int = NO_XATTRS
    sizes: bytes = b""


@dataclass(frozen=True)
class Entry:
    """A name in a directory: the reference of its inode, the inode's number and basic kind."""

    name: bytes
    inode: int
    number: int
    kind: int


def read_inode(tables: Tables, reference: int) -> Inode:
    """Read the inode that a reference points to.

    Raises:
        SquashfsError: there is no inode of a known kind.
    """
    stream, at = tables.inodes, position_of(reference)
    with damage_errors(f"inode {reference:#x}"):
        kind, mode, owner, group, time, number = _COMMON.unpack_from(stream, at)
        is_large = kind > _EXTENDED
        common = Inode(kind - _EXTENDED * is_large, mode, owner, group, time, number)
        at += _COMMON.size
        if common.kind == DIRECTORY:
            return _read_directory(stream, at, common, is_large=is_large)
        if common.kind == FILE:
            return _read_file(stream, at, common, tables.head.block_size, is_large=is_large)
        return _read_other(stream, at, common, is_large=is_large)


def _read_directory(stream: bytearray, at: int, common: Inode, *, is_large: bool) -> Inode:
    xattrs = NO_XATTRS
    if is_large:
        links, size, block, parent, _, offset, xattrs = _LARGE_DIRECTORY.unpack_from(stream, at)
    else:
        block, links, size, offset, parent = _DIRECTORY.unpack_from(stream, at)
    start, size = position_of(block << 16 | offset), max(size - _EMPTY, 0)
    return replace(common, links=links, start=start, size=size, parent=parent, xattrs=xattrs)


def _read_file(
    stream: bytearray, at: int, common: Inode, block_size: int, *, is_large: bool
) -> Inode:
    form, names = _FILE, "start fragment offset size"
    if is_large:
        form, names = _LARGE_FILE, "start size holes links fragment offset xattrs"
    fields = dict(zip(names.split(), form.unpack_from(stream, at), strict=True))
    size, has_fragment = fields["size"], fields["fragment"] != NO_FRAGMENT
    blocks = size // block_size if has_fragment else -(-size // block_size)
    return replace(common, **fields, sizes=_bytes_at(stream, at + form.size, 4 * blocks))


def _read_other(stream: bytearray, at: int, common: Inode, *, is_large: bool) -> Inode:
    links, start, size, target = _WORD.unpack_from(stream, at)[0], 0, 0, b""
    at += _WORD.size
    if common.kind in (SYMLINK, BLOCK_DEVICE, CHARACTER_DEVICE):
        (size,) = _WORD.unpack_from(stream, at)
        at += _WORD.size
    elif common.kind not in (FIFO, SOCKET):
        raise SquashfsError(f"it has an inode of the unknown kind {common.kind}")
    if common.kind == SYMLINK:
        target = _bytes_at(stream, at, size)
        at += size
    else:
        start, size = size, 0
    xattrs = _WORD.unpack_from(stream, at)[0] if is_large else NO_XATTRS
    return replace(common, links=links, start=start, size=size, sizes=target, xattrs=xattrs)


def _bytes_at(stream: bytearray, at: int, length: int) -> bytes:
    if at + length > len(stream):
        raise SquashfsError(f"an inode of it is longer than its table: {length} bytes at {at}")
    return bytes(stream[at : at + length])


def is_whiteout(inode: Inode) -> bool:
    """Return whether an inode marks a name as deleted: overlayfs uses the character device 0:0."""
    return inode.kind == CHARACTER_DEVICE and inode.start == 0


def append_inode(tables: Tables, inode: Inode, index: Sequence[tuple[int, int, bytes]] = ()) -> int:
    """Append an inode, with the index of a directory, and return its reference."""
    is_large = inode.kind in (DIRECTORY, FILE) or inode.xattrs != NO_XATTRS
    kind = inode.kind + _EXTENDED if is_large else inode.kind
    if not 1 <= inode.number <= len(tables.export) // 8:
        raise SquashfsError(f"it has no inode {inode.number}")
    reference = reference_to(len(tables.inodes))
    common = (kind, inode.mode, inode.owner, inode.group, inode.time, inode.number)
    tables.inodes += _COMMON.pack(*common) + _pack_body(inode, len(index))
    for offset, block, name in index:
        tables.inodes += _INDEX.pack(offset, block, len(name) - 1) + name
    tables.export[8 * (inode.number - 1) : 8 * inode.number] = struct.pack("<Q", reference)
    return reference


def _pack_body(inode: Inode, index_entries: int) -> bytes:
    if inode.kind == DIRECTORY:
        start = reference_to(inode.start)
        size, offset = inode.size + _EMPTY, start & 0xFFFF
        place = (start >> 16, inode.parent, index_entries, offset, inode.xattrs)
        return _LARGE_DIRECTORY.pack(inode.links, size, *place)
    if inode.kind == FILE:
        place = (inode.start, inode.size, inode.holes, inode.links, inode.fragment)
        return _LARGE_FILE.pack(*place, inode.offset, inode.xattrs) + inode.sizes
    xattrs = _WORD.pack(inode.xattrs) if inode.xattrs != NO_XATTRS else b""
    if inode.kind == SYMLINK:
        return _LINKS_AND_SIZE.pack(inode.links, inode.size) + inode.sizes + xattrs
    device = _WORD.pack(inode.start) if inode.kind in (BLOCK_DEVICE, CHARACTER_DEVICE) else b""
    return _WORD.pack(inode.links) + device + xattrs


def list_directory(tables: Tables, directory: Inode) -> Iterator[Entry]:
    """Yield the entries of a directory, sorted by name.

    Raises:
        SquashfsError: the listing is cut off, or an entry is not a valid name.
    """
    stream, at = tables.directories, directory.start
    end = at + directory.size
    if end > len(stream):
        raise SquashfsError("a directory of it is cut off")
    with damage_errors("a directory"):
        while at < end:
            count, block, first = _HEADER.unpack_from(stream, at)
            at += _HEADER.size
            for _ in range(count + 1):
                offset, number, kind, length = _ENTRY.unpack_from(stream, at)
                at += _ENTRY.size + length + 1
                if at > end:
                    raise SquashfsError("an entry of a directory of it is longer than it")
                name = bytes(stream[at - length - 1 : at])
                if name in (b".", b"..") or b"/" in name or b"\0" in name:
                    raise SquashfsError(f"{name!r} is not a name of a file")
                yield Entry(name, block << 16 | offset, first + number, kind)


def append_listing(
    tables: Tables, entries: Iterable[Entry]
) -> tuple[int, int, list[tuple[int, int, bytes]]]:
    """Append the listing of a directory, sorted by name.

    Returns:
        Where it is, its size, and an index of the blocks that it spans: offset in the listing,
        block, and the first name in that block.
    """
    start = len(tables.directories)
    index: list[tuple[int, int, bytes]] = []
    indexed_block = start // METADATA_BLOCK
    run: list[Entry] = []  # entries below one header
    size = 0  # of the run, in bytes

    def end_run() -> None:
        nonlocal indexed_block, size
        at = len(tables.directories)
        if at // METADATA_BLOCK != indexed_block:
            index.append((at - start, reference_to(at) >> 16, run[0].name))
            indexed_block = at // METADATA_BLOCK
        tables.directories += _pack_run(run)
        run.clear()
        size = 0

    for entry in sorted(entries, key=lambda entry: entry.name):
        at = len(tables.directories)
        crosses_block = (at + size) // METADATA_BLOCK != at // METADATA_BLOCK
        if run and (crosses_block or not _fits_run(run, entry)):
            end_run()
        size += _ENTRY.size + len(entry.name) + (0 if run else _HEADER.size)
        run.append(entry)
    if run:
        end_run()
    return start, len(tables.directories) - start, index


def _fits_run(run: Sequence[Entry], entry: Entry) -> bool:
    """Return whether an entry can be below the same header as the run before it."""
    first = run[0]
    return (
        len(run) < _MOST_ENTRIES
        and first.inode >> 16 == entry.inode >> 16
        and -0x8000 <= entry.number - first.number < 0x8000
    )


def _pack_run(run: Sequence[Entry]) -> bytes:
    first = run[0]
    parts = [_HEADER.pack(len(run) - 1, first.inode >> 16, first.number)]
    for entry in run:
        number = entry.number - first.number
        parts += (
            _ENTRY.pack(entry.inode & 0xFFFF, number, entry.kind, len(entry.name) - 1),
            entry.name,
        )
    return b"".join(parts)
