"""Grafting layers onto a squashfs, on file systems that are made here byte by byte; `tests/cluster` has real ones mounted."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from toolkit.images.sif.graft import (
    CHARACTER_DEVICE,
    DIRECTORY,
    FILE,
    SYMLINK,
    Entry,
    Inode,
    append_inode,
    append_listing,
    graft,
    list_directory,
    read_inode,
)
from toolkit.images.sif.tables import (
    SUPERBLOCK_SIZE,
    Reader,
    Superblock,
    Tables,
    read_tables,
    write_tables,
)

Tree = Mapping[str, "Tree | bytes | str | None"]  # directory, file, symbolic link, whiteout
_HEAD = Superblock(*[0] * 19)._replace(mkfs_time=1, block_size=131072, compression=6, ids=1)


class Image:
    """A squashfs as bytes, made of a tree whose files are one stored block each."""

    def __init__(self, tree: Tree) -> None:
        self.data = bytearray(SUPERBLOCK_SIZE)
        empty = [bytearray() for _ in range(7)]
        empty[4] += bytes(4)  # the only owner is root
        self.tables = Tables(_HEAD, 0, *empty)
        root = self._add(b"", tree, 1_000_000)
        self.tables.head, self.tables.data_end = _HEAD._replace(root=root.inode), len(self.data)
        head, tail = write_tables(self.tables)
        self.bytes = head + bytes(self.data[SUPERBLOCK_SIZE:]) + tail

    def _add(self, name: bytes, value: Tree | bytes | str | None, parent: int) -> Entry:
        self.tables.export += bytes(8)
        number = len(self.tables.export) // 8
        kind, fields = CHARACTER_DEVICE, {}
        sizes = b""
        if isinstance(value, Mapping):
            inner = [self._add(key.encode(), each, number) for key, each in value.items()]
            start, size = append_listing(self.tables, inner)
            kind, fields = DIRECTORY, {"start": start, "size": size, "parent": parent}
        elif isinstance(value, bytes):
            sizes = struct.pack("<I", len(value) | 1 << 24) if value else b""
            kind, fields = FILE, {"start": len(self.data), "size": len(value)}
            self.data += value
        elif isinstance(value, str):
            kind, fields, sizes = SYMLINK, {"size": len(value)}, value.encode()
        inode = Inode(kind, 0o755, 0, 0, 7, number, sizes=sizes, **fields)
        return Entry(name, append_inode(self.tables, inode), number, kind)


def read(data: bytes) -> Tables:
    return read_tables(Reader(len(data), lambda at, length: data[at : at + length]))


def entries(tables: Tables, reference: int) -> dict[bytes, Inode]:
    """The inodes of a directory, by name; each must have its number and be in the table of all."""
    found = {}
    for entry in list_directory(tables, read_inode(tables, reference)):
        found[entry.name] = inode = read_inode(tables, entry.inode)
        assert inode.number == entry.number
        assert struct.unpack_from("<Q", tables.export, 8 * (inode.number - 1))[0] == entry.inode
    return found


def contents(data: bytes) -> dict[str, object]:
    """The tree that a reader finds."""
    tables = read(data)

    def directory(reference: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, inode in entries(tables, reference).items():
            value: object = inode.sizes.decode() if inode.kind == SYMLINK else None
            if inode.kind == DIRECTORY:
                value = directory(struct.unpack_from("<Q", tables.export, 8 * inode.number - 8)[0])
            elif inode.kind == FILE:
                value = data[inode.start : inode.start + inode.size]
            found[name.decode()] = value
        return found

    return directory(tables.head.root)


def grafted(base: Tree, layer: Tree) -> bytes:
    """The squashfs of a base with a layer on it."""
    below, above = Image(base).bytes, Image(layer).bytes
    tables, of_layer = read(below), read(above)
    data = below[SUPERBLOCK_SIZE : tables.data_end]
    graft(tables, of_layer, SUPERBLOCK_SIZE)
    data += above[SUPERBLOCK_SIZE : of_layer.data_end]
    assert len(data) + SUPERBLOCK_SIZE == tables.data_end
    head, tail = write_tables(tables)
    return head + data + tail


_MANY = {f"name-{number:05d}": b"" for number in range(3000)}  # more than one block of names


@pytest.mark.parametrize(
    ("base", "layer", "merged"),
    [
        (
            {
                "etc": {"a": b"old", "b": b"stays", "c": b"goes"},
                "usr": {"bin": {"x": b"x"}},
                "link": "etc",
            },
            {
                "etc": {"a": b"new", "c": None, "d": {"e": b"added"}},
                "link": {"now": b"a directory"},
            },
            {
                "etc": {"a": b"new", "b": b"stays", "d": {"e": b"added"}},
                "usr": {"bin": {"x": b"x"}},
                "link": {"now": b"a directory"},
            },
        ),
        ({"bin": {"old": b"1"}}, {"bin": _MANY}, {"bin": {**_MANY, "old": b"1"}}),
    ],
    ids=["adds, replaces and deletes", "thousands of names"],
)
def test_a_layer_is_merged_with_its_base(base, layer, merged):
    assert contents(grafted(base, layer)) == merged


def test_a_layer_that_only_adds_leaves_directories_as_they_are():
    base, layer = read(Image({"a": {}}).bytes), read(Image({"a": {}, "new": {}}).bytes)
    struct.pack_into("<I", layer.ids, 0, 33)
    graft(base, layer, SUPERBLOCK_SIZE, only_adds=True)
    owners = {
        name: struct.unpack_from("<I", base.ids, 4 * inode.owner)[0]
        for name, inode in entries(base, base.head.root).items()
    }
    assert owners == {b"a": 0, b"new": 33}
