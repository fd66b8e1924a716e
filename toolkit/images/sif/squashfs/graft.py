"""Graft a layer onto the file system below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from toolkit.images.sif import SquashfsError
from toolkit.images.sif.squashfs.format import damage_errors
from toolkit.images.sif.squashfs.inodes import (
    DIRECTORY,
    FILE,
    NO_FRAGMENT,
    NO_XATTRS,
    Entry,
    Inode,
    append_inode,
    append_listing,
    is_whiteout,
    list_directory,
    read_inode,
)
from toolkit.images.sif.squashfs.tables import Tables, append_fragments, append_xattrs, merge_ids

_DEEPEST = 300  # nested directories; a path can have 4,096 characters


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
    if (base.head.block_size, base.head.compression) != (
        layer.head.block_size,
        layer.head.compression,
    ):
        raise SquashfsError("it was packed in another way than what it is to be put on")
    if layer.data_end < data_start:
        raise SquashfsError(f"its tables begin at {layer.data_end}, before its data")
    shift = base.data_end - data_start
    with damage_errors("what refers to another table"):
        merge = _Graft(
            base=base,
            layer=layer,
            shift=shift,
            fragments=append_fragments(base, layer, shift),
            ids=merge_ids(base, layer),
            xattrs=append_xattrs(base, layer),
            only_adds=only_adds,
            bytes_left=len(layer.inodes) + len(layer.directories) + len(base.directories),
        )
        base.data_end += layer.data_end - data_start
        root = _read_directory(base, base.head.root)
        top = merge.merge(root, _read_directory(layer, layer.head.root), root.parent)
    base.head = base.head._replace(root=top.inode)


def _read_directory(tables: Tables, reference: int) -> Inode:
    inode = read_inode(tables, reference)
    if inode.kind != DIRECTORY:
        raise SquashfsError(f"inode {inode.number} of it is not a directory")
    return inode


@dataclass
class _Graft:
    """One graft: how the layer's numbers become the base's.

    Attributes:
        shift: what is added to positions of the layer's data.
        fragments: the base's number of the layer's first fragment.
        ids: the base's index of each owner of the layer.
        xattrs: the base's number of the layer's first set of extended attributes.
        bytes_left: how much of the tables may still be read. Each byte is read once, unless
            directories are within themselves or overlap.
        links: the layer's inodes that are in the base already, by their numbers.
    """

    base: Tables
    layer: Tables
    shift: int
    fragments: int
    ids: Sequence[int]
    xattrs: int
    only_adds: bool
    bytes_left: int
    links: dict[int, Entry] = field(default_factory=dict)

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
            if is_whiteout(inode):
                entries.pop(entry.name, None)
            elif inode.kind == DIRECTORY:
                old = entries.get(entry.name)
                lower = _read_directory(base, old.inode) if old and old.kind == DIRECTORY else None
                entries[entry.name] = self.merge(lower, inode, number, entry.name, depth + 1)
            else:
                entries[entry.name] = replace(self._add_leaf(inode), name=entry.name)
        start, size, index = append_listing(base, entries.values())
        links = 2 + sum(entry.kind == DIRECTORY for entry in entries.values())
        attributes = below if below and self.only_adds else self._with_base_owners(above)
        merged = replace(
            attributes, number=number, links=links, start=start, size=size, parent=parent
        )
        return Entry(name, append_inode(base, merged, index), number, DIRECTORY)

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
                has_fragment = inode.fragment != NO_FRAGMENT
                fragment = inode.fragment + self.fragments if has_fragment else NO_FRAGMENT
                moved = replace(moved, start=start, fragment=fragment)
            reference = append_inode(self.base, moved)
            self.links[inode.number] = Entry(b"", reference, number, inode.kind)
        return self.links[inode.number]

    def _with_base_owners(self, inode: Inode) -> Inode:
        """Return an inode with the base's numbers of its owners and extended attributes."""
        xattrs = inode.xattrs + self.xattrs if inode.xattrs != NO_XATTRS else NO_XATTRS
        owner, group = self.ids[inode.owner], self.ids[inode.group]
        return replace(inode, owner=owner, group=group, xattrs=xattrs)

    def _new_number(self) -> int:
        self.base.export += bytes(8)
        return len(self.base.export) // 8
