"""Inodes and directories of a squashfs: read from its streams, and packed for them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.images.sif.squashfs.format import SquashfsError, linear, reading, reference
from toolkit.images.sif.squashfs.tables import Tables

DIRECTORY, FILE, SYMLINK, BLOCK_DEVICE, CHARACTER_DEVICE, FIFO, SOCKET = range(1, 8)
_EXTENDED = 7  # the extended kind of an inode is its kind and this
NO_XATTRS = NO_FRAGMENT = 0xFFFFFFFF

_COMMON = struct.Struct("<4HII")  # kind, mode, owner, group, time, number
_DIRECTORY = struct.Struct("<IIHHI")  # block, links, size, offset, parent
_LARGE_DIRECTORY = struct.Struct(
    "<IIIIHHI"
)  # links, size, block, parent, count of the index, offset, attributes
_FILE = struct.Struct("<4I")  # first block, fragment, offset in it, size
_LARGE_FILE = struct.Struct(
    "<QQQ4I"
)  # first block, size, bytes of holes, links, fragment, offset in it, attributes
_WORD = struct.Struct("<I")
_TWO = struct.Struct("<II")
_HEADER = struct.Struct(
    "<III"
)  # entries but one, block of their inodes, number from which theirs are counted
_ENTRY = struct.Struct("<HhHH")  # offset of the inode, its number, kind, length of the name but one
_INDEX = struct.Struct("<III")  # offset in the directory, block, length of the name but one
_MOST_ENTRIES = 256
_EMPTY = 3  # a directory's size counts these for "." and ".."
_BLOCK = 8192


@dataclass(frozen=True)
class Inode:
    """An inode of any kind.

    Attributes:
        kind: one of the basic kinds.
        owner, group: indexes in the table of ids.
        start: of a file, the position of its data; of a directory, that of its listing in the stream; of a device, its number.
        size: in bytes; of a directory, of its listing.
        sizes: of a file, those of its blocks as they are stored; of a symbolic link, where it leads.
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


def read_inode(tables: Tables, at: int) -> Inode:
    """Return the inode that a reference points to.

    Raises:
        SquashfsError: there is none of a known kind.
    """
    stream, position = tables.inodes, linear(at)
    try:
        kind, mode, owner, group, time, number = _COMMON.unpack_from(stream, position)
        basic = kind - _EXTENDED if kind > _EXTENDED else kind
        common = Inode(basic, mode, owner, group, time, number)
        rest = position + _COMMON.size
        if basic == DIRECTORY:
            return _directory(stream, rest, common, large=kind > _EXTENDED)
        if basic == FILE:
            return _file(stream, rest, common, tables.head.block_size, large=kind > _EXTENDED)
        return _other(stream, rest, common, large=kind > _EXTENDED)
    except (struct.error, OverflowError) as error:
        raise SquashfsError(f"inode {at:#x} of it is broken: {error}") from None


def _directory(stream: bytearray, at: int, common: Inode, *, large: bool) -> Inode:
    if large:
        links, size, block, parent, _, offset, xattrs = _LARGE_DIRECTORY.unpack_from(stream, at)
    else:
        (block, links, size, offset, parent), xattrs = _DIRECTORY.unpack_from(stream, at), NO_XATTRS
    start = linear(block << 16 | offset)
    size = max(size, _EMPTY)
    return replace(
        common, links=links, start=start, size=size - _EMPTY, parent=parent, xattrs=xattrs
    )


def _file(stream: bytearray, at: int, common: Inode, block_size: int, *, large: bool) -> Inode:
    if large:
        start, size, holes, links, fragment, offset, xattrs = _LARGE_FILE.unpack_from(stream, at)
        at += _LARGE_FILE.size
    else:
        (start, fragment, offset, size), holes, links, xattrs = (
            _FILE.unpack_from(stream, at),
            0,
            1,
            NO_XATTRS,
        )
        at += _FILE.size
    blocks = size // block_size if fragment != NO_FRAGMENT else -(-size // block_size)
    sizes = _bytes(stream, at, 4 * blocks)
    return replace(
        common,
        links=links,
        start=start,
        size=size,
        fragment=fragment,
        offset=offset,
        holes=holes,
        xattrs=xattrs,
        sizes=sizes,
    )


def _other(stream: bytearray, at: int, common: Inode, *, large: bool) -> Inode:
    if common.kind == SYMLINK:
        links, size = _TWO.unpack_from(stream, at)
        target = _bytes(stream, at + 8, size)
        xattrs = _WORD.unpack_from(stream, at + 8 + size)[0] if large else NO_XATTRS
        return replace(common, links=links, size=size, sizes=target, xattrs=xattrs)
    (links,) = _WORD.unpack_from(stream, at)
    at += 4
    device = 0
    if common.kind in (BLOCK_DEVICE, CHARACTER_DEVICE):
        (device,) = _WORD.unpack_from(stream, at)
        at += 4
    elif common.kind not in (FIFO, SOCKET):
        raise SquashfsError(f"it has an inode of the unknown kind {common.kind}")
    return replace(
        common,
        links=links,
        start=device,
        xattrs=_WORD.unpack_from(stream, at)[0] if large else NO_XATTRS,
    )


def _bytes(stream: bytearray, at: int, length: int) -> bytes:
    if at + length > len(stream):
        raise SquashfsError(f"an inode of it is longer than its table: {length} bytes at {at}")
    return bytes(stream[at : at + length])


def is_whiteout(inode: Inode) -> bool:
    """Whether it says that the name is deleted below: the character device 0:0, as overlayfs has it."""
    return inode.kind == CHARACTER_DEVICE and inode.start == 0


def add_inode(tables: Tables, inode: Inode, index: Sequence[tuple[int, int, bytes]] = ()) -> int:
    """Append an inode, with the index of a directory; its reference."""
    large = inode.kind in (DIRECTORY, FILE) or inode.xattrs != NO_XATTRS
    kind = inode.kind + _EXTENDED if large else inode.kind
    if not 1 <= inode.number <= len(tables.export) // 8:
        raise SquashfsError(f"it has no inode {inode.number}")
    at = reference(len(tables.inodes))
    tables.inodes += _COMMON.pack(
        kind, inode.mode, inode.owner, inode.group, inode.time, inode.number
    )
    tables.inodes += _body(inode, len(index))
    for offset, block, name in index:
        tables.inodes += _INDEX.pack(offset, block, len(name) - 1) + name
    tables.export[8 * (inode.number - 1) : 8 * inode.number] = struct.pack("<Q", at)
    return at


def _body(inode: Inode, index: int) -> bytes:
    if inode.kind == DIRECTORY:
        start = reference(inode.start)
        fields = (
            inode.links,
            inode.size + _EMPTY,
            start >> 16,
            inode.parent,
            index,
            start & 0xFFFF,
            inode.xattrs,
        )
        return _LARGE_DIRECTORY.pack(*fields)
    if inode.kind == FILE:
        place = (
            inode.start,
            inode.size,
            inode.holes,
            inode.links,
            inode.fragment,
            inode.offset,
            inode.xattrs,
        )
        return _LARGE_FILE.pack(*place) + inode.sizes
    xattrs = _WORD.pack(inode.xattrs) if inode.xattrs != NO_XATTRS else b""
    if inode.kind == SYMLINK:
        return _TWO.pack(inode.links, inode.size) + inode.sizes + xattrs
    device = _WORD.pack(inode.start) if inode.kind in (BLOCK_DEVICE, CHARACTER_DEVICE) else b""
    return _WORD.pack(inode.links) + device + xattrs


def listing(tables: Tables, directory: Inode) -> Iterator[Entry]:
    """Yield what a directory holds, sorted by name.

    Raises:
        SquashfsError: it is cut off, or a name in it cannot be one.
    """
    stream, at = tables.directories, directory.start
    end = at + directory.size
    if end > len(stream):
        raise SquashfsError("a directory of it is cut off")
    with reading("a directory"):
        while at < end:
            count, block, first = _HEADER.unpack_from(stream, at)
            at += _HEADER.size
            for _ in range(count + 1):
                offset, number, kind, length = _ENTRY.unpack_from(stream, at)
                at += _ENTRY.size + length + 1
                if at > end:
                    raise SquashfsError("an entry of a directory of it is longer than it")
                name = _name(stream[at - length - 1 : at])
                yield Entry(name, block << 16 | offset, first + number, kind)


def _name(raw: bytearray) -> bytes:
    name = bytes(raw)
    if name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise SquashfsError(f"{name!r} is no name of a file")
    return name


def add_listing(
    tables: Tables, entries: Iterable[Entry]
) -> tuple[int, int, list[tuple[int, int, bytes]]]:
    """Append a directory's listing, sorted by name; where it is, its size, and an index of the blocks that it goes through."""
    start = len(tables.directories)
    index: list[tuple[int, int, bytes]] = []
    indexed = start // _BLOCK
    run: list[Entry] = []
    size = 0  # of the run, in bytes

    def end_run() -> None:
        nonlocal indexed, size
        at = len(tables.directories)
        if at // _BLOCK != indexed:
            index.append((at - start, reference(at) >> 16, run[0].name))
            indexed = at // _BLOCK
        tables.directories += _packed(run)
        run.clear()
        size = 0

    for entry in sorted(entries, key=lambda entry: entry.name):
        at = len(tables.directories)
        if run and (not _together(run, entry) or (at + size) // _BLOCK != at // _BLOCK):
            end_run()
        run.append(entry)
        size += (
            (_ENTRY.size + len(entry.name))
            if size
            else (_HEADER.size + _ENTRY.size + len(entry.name))
        )
    if run:
        end_run()
    return start, len(tables.directories) - start, index


def _together(run: Sequence[Entry], entry: Entry) -> bool:
    """Whether an entry can stand under the same header as those before it."""
    first = run[0]
    return (
        len(run) < _MOST_ENTRIES
        and first.inode >> 16 == entry.inode >> 16
        and -0x8000 <= entry.number - first.number < 0x8000
    )


def _packed(run: Sequence[Entry]) -> bytes:
    first = run[0]
    parts = [_HEADER.pack(len(run) - 1, first.inode >> 16, first.number)]
    for entry in run:
        parts += (
            _ENTRY.pack(
                entry.inode & 0xFFFF, entry.number - first.number, entry.kind, len(entry.name) - 1
            ),
            entry.name,
        )
    return b"".join(parts)
