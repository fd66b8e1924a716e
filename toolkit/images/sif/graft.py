"""Graft a layer onto the squashfs below it, without packing that again; README.md explains it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.images.sif import SquashfsError
from toolkit.images.sif.tables import (
    FRAGMENT,
    XATTR_ID,
    Tables,
    damage_errors,
    position_of,
    reference_to,
)

DIRECTORY, FILE, SYMLINK, BLOCK_DEVICE, CHARACTER_DEVICE, FIFO, SOCKET = range(1, 8)
_EXTENDED = 7  # is added to the kind of an inode that has the longer form
NO_XATTRS = NO_FRAGMENT = 0xFFFFFFFF
_COMMON = struct.Struct("<4HII")  # kind, mode, owner, group, time, number
# What follows, by the kind: fields of ``Inode``, and where a directory's listing is.
_BODIES = {
    DIRECTORY: ("<IIHHI", "block links size offset parent"),
    FILE: ("<4I", "start fragment offset size"),
    SYMLINK: ("<II", "links size"),
    BLOCK_DEVICE: ("<II", "links start"),
    CHARACTER_DEVICE: ("<II", "links start"),
    FIFO: ("<I", "links"),
    SOCKET: ("<I", "links"),
    _EXTENDED + DIRECTORY: ("<IIIIHHI", "links size block parent index offset xattrs"),
    _EXTENDED + FILE: ("<QQQ4I", "start size holes links fragment offset xattrs"),
    _EXTENDED + SYMLINK: ("<II", "links size"),  # the attributes follow the target
    _EXTENDED + BLOCK_DEVICE: ("<III", "links start xattrs"),
    _EXTENDED + CHARACTER_DEVICE: ("<III", "links start xattrs"),
    _EXTENDED + FIFO: ("<II", "links xattrs"),
    _EXTENDED + SOCKET: ("<II", "links xattrs"),
}
# number of entries minus one, block of their inodes, number that theirs are relative to
_HEADER = struct.Struct("<III")
_ENTRY = struct.Struct("<HhHH")  # offset of the inode, its number, kind, length of the name minus 1
_MOST_ENTRIES = 256
_EMPTY = 3  # the size of a directory counts these bytes for "." and ".."
_OUT_OF_LINE = 0x100  # the value of an attribute is a reference to the real value
_DEEPEST = 300  # nested directories; a path can have 4,096 characters


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
        form, names = _BODIES[kind]
        at += _COMMON.size
        fields = dict(zip(names.split(), struct.unpack_from(form, stream, at), strict=True))
        at += struct.calcsize(form)
        length = 0
        basic = (kind - 1) % _EXTENDED + 1
        if basic == DIRECTORY:
            fields["start"] = position_of(fields.pop("block") << 16 | fields.pop("offset"))
            fields["size"] = max(fields["size"] - _EMPTY, 0)
            fields.pop("index", None)
        elif basic == FILE:
            blocks, rest = divmod(fields["size"], tables.head.block_size)
            length = 4 * (blocks + (rest > 0 and fields["fragment"] == NO_FRAGMENT))
        elif basic == SYMLINK:
            length = fields["size"]
        if at + length > len(stream):
            raise SquashfsError(f"an inode of it is longer than its table: {length} bytes at {at}")
        if kind == _EXTENDED + SYMLINK:
            (fields["xattrs"],) = struct.unpack_from("<I", stream, at + length)
        sizes = bytes(stream[at : at + length])
        return Inode(basic, mode, owner, group, time, number, **fields, sizes=sizes)


def append_inode(tables: Tables, inode: Inode) -> int:
    """Append an inode and return its reference."""
    is_large = inode.kind in (DIRECTORY, FILE) or inode.xattrs != NO_XATTRS
    kind = inode.kind + _EXTENDED if is_large else inode.kind
    if not 1 <= inode.number <= len(tables.export) // 8:
        raise SquashfsError(f"it has no inode {inode.number}")
    fields = dict(vars(inode))
    if inode.kind == DIRECTORY:
        listing = reference_to(inode.start)
        fields |= {"block": listing >> 16, "offset": listing & 0xFFFF, "index": 0}
        fields["size"] += _EMPTY
    form, names = _BODIES[kind]
    reference = reference_to(len(tables.inodes))
    common = (kind, inode.mode, inode.owner, inode.group, inode.time, inode.number)
    body = struct.pack(form, *(fields[name] for name in names.split()))
    tables.inodes += _COMMON.pack(*common) + body + inode.sizes
    if kind == _EXTENDED + SYMLINK:
        tables.inodes += struct.pack("<I", inode.xattrs)
    tables.export[8 * (inode.number - 1) : 8 * inode.number] = struct.pack("<Q", reference)
    return reference


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


def append_listing(tables: Tables, entries: Iterable[Entry]) -> tuple[int, int]:
    """Append the listing of a directory, sorted by name. Return where it is, and its size."""
    start = len(tables.directories)
    run: list[Entry] = []  # entries below one header
    for entry in sorted(entries, key=lambda entry: entry.name):
        if run and not _fits_run(run, entry):
            tables.directories += _pack_run(run)
            run = []
        run.append(entry)
    if run:
        tables.directories += _pack_run(run)
    return start, len(tables.directories) - start


def _fits_run(run: Sequence[Entry], entry: Entry) -> bool:
    first = run[0]
    is_near = -0x8000 <= entry.number - first.number < 0x8000
    return len(run) < _MOST_ENTRIES and is_near and first.inode >> 16 == entry.inode >> 16


def _pack_run(run: Sequence[Entry]) -> bytes:
    first = run[0]
    packed = _HEADER.pack(len(run) - 1, first.inode >> 16, first.number)
    for entry in run:
        number, length = entry.number - first.number, len(entry.name)
        packed += _ENTRY.pack(entry.inode & 0xFFFF, number, entry.kind, length - 1) + entry.name
    return packed


def graft(base: Tables, layer: Tables, data_start: int, *, only_adds: bool = False) -> None:
    """Graft a layer onto ``base``, which is changed.

    Directories are merged, a whiteout deletes, and everything else replaces.

    Args:
        base: the file system below.
        layer: of the upper directory of an overlay, in which deleted names are whiteouts.
        data_start: where the layer's data begin in its own file. The caller puts them at
            ``base.data_end`` as it was before.
        only_adds: a directory of the base keeps its owner and mode, of which the layer knows
            nothing.

    Raises:
        SquashfsError: the two cannot be in one file, or one is broken.
    """
    packing = [(tables.head.block_size, tables.head.compression) for tables in (base, layer)]
    if packing[0] != packing[1]:
        raise SquashfsError("it was packed in another way than what it is to be put on")
    if layer.data_end < data_start:
        raise SquashfsError(f"its tables begin at {layer.data_end}, before its data")
    with damage_errors("what refers to another table"):
        merge = _Graft(base, layer, only_adds, shift=base.data_end - data_start)
        base.data_end += layer.data_end - data_start
        root = _read_directory(base, base.head.root)
        top = merge.merge(root, _read_directory(layer, layer.head.root), root.parent)
    base.head = base.head._replace(root=top.inode)


def _read_directory(tables: Tables, reference: int) -> Inode:
    inode = read_inode(tables, reference)
    if inode.kind != DIRECTORY:
        raise SquashfsError(f"inode {inode.number} of it is not a directory")
    return inode


class _Graft:
    """One graft: how the layer's numbers become the base's.

    The small tables of the layer are appended to those of the base.
    """

    def __init__(self, base: Tables, layer: Tables, only_adds: bool, shift: int) -> None:
        self.base, self.layer, self.only_adds, self.shift = base, layer, only_adds, shift
        self.fragments = len(base.fragments) // FRAGMENT.size  # the number of the layer's first
        for position, size, _ in FRAGMENT.iter_unpack(bytes(layer.fragments)):
            base.fragments += FRAGMENT.pack(position + shift, size, 0)
        self.ids = _merge_ids(base, layer)
        self.xattrs = _append_xattrs(base, layer)
        # Each byte of a table is read once, unless directories are within themselves or overlap.
        self.bytes_left = len(layer.inodes) + len(layer.directories) + len(base.directories)
        self.links: dict[int, Entry] = {}  # the layer's inodes that are in the base, by number

    def merge(
        self, below: Inode | None, above: Inode, parent: int, name: bytes = b"", depth: int = 0
    ) -> Entry:
        """Merge a directory of the layer into one of the base, or add it.

        Raises:
            SquashfsError: a directory is within itself, or too deep.
        """
        base = self.base
        if depth > _DEEPEST:
            raise SquashfsError(f"its directories are nested deeper than {_DEEPEST}")
        self._spend(above.size + (below.size if below else 0))
        number = below.number if below else self._new_number()
        entries = {entry.name: entry for entry in list_directory(base, below)} if below else {}
        for entry in list(list_directory(self.layer, above)):
            inode = read_inode(self.layer, entry.inode)
            self._spend(len(inode.sizes))
            if inode.kind == CHARACTER_DEVICE and inode.start == 0:  # a whiteout of overlayfs
                entries.pop(entry.name, None)
            elif inode.kind == DIRECTORY:
                old = entries.get(entry.name)
                lower = _read_directory(base, old.inode) if old and old.kind == DIRECTORY else None
                entries[entry.name] = self.merge(lower, inode, number, entry.name, depth + 1)
            else:
                entries[entry.name] = replace(self._add_leaf(inode), name=entry.name)
        start, size = append_listing(base, entries.values())
        links = 2 + sum(entry.kind == DIRECTORY for entry in entries.values())
        attributes = below if below and self.only_adds else self._with_base_owners(above)
        merged = replace(
            attributes, number=number, links=links, start=start, size=size, parent=parent
        )
        return Entry(name, append_inode(base, merged), number, DIRECTORY)

    def _spend(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise SquashfsError("its directories are within themselves, or lie on each other")

    def _add_leaf(self, inode: Inode) -> Entry:
        """Add anything but a directory; further hard links of an inode get the same inode."""
        if inode.number not in self.links:
            number = self._new_number()
            moved = replace(self._with_base_owners(inode), number=number)
            if inode.kind == FILE:
                start = inode.start + self.shift if inode.sizes else 0
                moved = replace(moved, start=start)
                if inode.fragment != NO_FRAGMENT:
                    moved = replace(moved, fragment=inode.fragment + self.fragments)
            self.links[inode.number] = Entry(
                b"", append_inode(self.base, moved), number, inode.kind
            )
        return self.links[inode.number]

    def _with_base_owners(self, inode: Inode) -> Inode:
        """Return an inode with the base's numbers of its owners and extended attributes."""
        xattrs = inode.xattrs + self.xattrs if inode.xattrs != NO_XATTRS else NO_XATTRS
        owner, group = self.ids[inode.owner], self.ids[inode.group]
        return replace(inode, owner=owner, group=group, xattrs=xattrs)

    def _new_number(self) -> int:
        self.base.export += bytes(8)
        return len(self.base.export) // 8


def _merge_ids(base: Tables, layer: Tables) -> list[int]:
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


def _append_xattrs(base: Tables, layer: Tables) -> int:
    """Append the layer's extended attributes. Return the number of its first set of them."""
    first, shift = len(base.xattr_ids) // XATTR_ID.size, len(base.xattrs)
    attributes = bytearray(layer.xattrs)
    moved: set[int] = set()
    for start, count, size in XATTR_ID.iter_unpack(bytes(layer.xattr_ids)):
        at = position_of(start)
        base.xattr_ids += XATTR_ID.pack(reference_to(at + shift), count, size)
        for _ in range(count):
            if at in moved:
                raise SquashfsError("two sets of its extended attributes overlap")
            moved.add(at)
            kind, length = struct.unpack_from("<HH", attributes, at)
            at += 4 + length
            (length,) = struct.unpack_from("<I", attributes, at)
            if kind & _OUT_OF_LINE:
                (target,) = struct.unpack_from("<Q", attributes, at + 4)
                target = reference_to(position_of(target) + shift)
                struct.pack_into("<Q", attributes, at + 4, target)
            at += 4 + length
    base.xattrs += attributes
    return first
