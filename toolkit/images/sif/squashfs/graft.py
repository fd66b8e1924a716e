"""What a step changed, put on what was there before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from toolkit.images.sif.squashfs.format import SquashfsError, reading
from toolkit.images.sif.squashfs.inodes import (
    DIRECTORY,
    FILE,
    NO_FRAGMENT,
    NO_XATTRS,
    Entry,
    Inode,
    add_inode,
    add_listing,
    is_whiteout,
    listing,
    read_inode,
)
from toolkit.images.sif.squashfs.tables import Tables, add_fragments, add_ids, add_xattrs

_DEEPEST = 300  # nested directories; a path can have 4,096 characters


def graft(base: Tables, layer: Tables, data_start: int, *, only_adds: bool = False) -> None:
    """Put a layer on ``base``, which is changed: directories are merged, a whiteout deletes, everything else replaces.

    Args:
        layer: of the upper directory of an overlay, in which what is deleted is a whiteout.
        data_start: where the layer's data begin in its own file; they are to be put at ``base.data_end`` as it was before.
        only_adds: a directory that is there already keeps its owner and mode, of which the layer knows nothing.

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
    with reading("what refers to another table"):
        moved = _Moved(
            base=base,
            layer=layer,
            shift=shift,
            fragments=add_fragments(base, layer, shift),
            ids=add_ids(base, layer),
            xattrs=add_xattrs(base, layer),
            only_adds=only_adds,
        )
        base.data_end += layer.data_end - data_start
        root = _directory(base, base.head.root)
        top = moved.merged(root, _directory(layer, layer.head.root), root.parent)
    base.head = msgspec.structs.replace(base.head, root=top.inode)


def _directory(tables: Tables, at: int) -> Inode:
    found = read_inode(tables, at)
    if found.kind != DIRECTORY:
        raise SquashfsError(f"inode {found.number} of it is not a directory")
    return found


@dataclass
class _Moved:
    """One graft: how the layer's numbers become the base's.

    Attributes:
        links: the inodes of the layer that are in the base already, by their numbers.
        left: bytes of tables that may still be read. Each is read once, unless directories are within
            themselves or lie on each other.
    """

    base: Tables
    layer: Tables
    shift: int
    fragments: int
    ids: Sequence[int]
    xattrs: int
    only_adds: bool
    links: dict[int, Entry] = field(default_factory=dict)
    left: int = 0

    def __post_init__(self) -> None:
        self.left = (
            len(self.layer.inodes) + len(self.layer.directories) + len(self.base.directories)
        )

    def merged(
        self, below: Inode | None, above: Inode, parent: int, name: bytes = b"", depth: int = 0
    ) -> Entry:
        """Put a directory of the layer on one of the base, or on none.

        Raises:
            SquashfsError: a directory is within itself, or too deep.
        """
        base = self.base
        if depth > _DEEPEST:
            raise SquashfsError(f"its directories are nested deeper than {_DEEPEST}")
        self._spend(above.size + (below.size if below else 0))
        number = below.number if below else self._new_number()
        entries = {entry.name: entry for entry in listing(base, below)} if below else {}
        for entry in list(listing(self.layer, above)):
            inode = read_inode(self.layer, entry.inode)
            self._spend(len(inode.sizes))
            if is_whiteout(inode):
                entries.pop(entry.name, None)
            elif inode.kind == DIRECTORY:
                old = entries.get(entry.name)
                lower = _directory(base, old.inode) if old and old.kind == DIRECTORY else None
                entries[entry.name] = self.merged(lower, inode, number, entry.name, depth + 1)
            else:
                entries[entry.name] = replace(self._leaf(inode), name=entry.name)
        start, size, index = add_listing(base, entries.values())
        directories = sum(entry.kind == DIRECTORY for entry in entries.values())
        like = below if below and self.only_adds else self._owned(above)
        whole = replace(
            like, number=number, links=2 + directories, start=start, size=size, parent=parent
        )
        return Entry(name, add_inode(base, whole, index), number, DIRECTORY)

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise SquashfsError("its directories are within themselves, or lie on each other")

    def _leaf(self, inode: Inode) -> Entry:
        """Anything but a directory; the second name of the same inode gets the same inode."""
        if inode.number not in self.links:
            number = self._new_number()
            whole = replace(self._owned(inode), number=number)
            if inode.kind == FILE:
                whole = replace(
                    whole,
                    start=inode.start + self.shift if inode.sizes else 0,
                    fragment=inode.fragment + self.fragments
                    if inode.fragment != NO_FRAGMENT
                    else NO_FRAGMENT,
                )
            self.links[inode.number] = Entry(b"", add_inode(self.base, whole), number, inode.kind)
        return self.links[inode.number]

    def _owned(self, inode: Inode) -> Inode:
        xattrs = inode.xattrs + self.xattrs if inode.xattrs != NO_XATTRS else NO_XATTRS
        return replace(
            inode, owner=self.ids[inode.owner], group=self.ids[inode.group], xattrs=xattrs
        )

    def _new_number(self) -> int:
        self.base.export += bytes(8)
        return len(self.base.export) // 8
