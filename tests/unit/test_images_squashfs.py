"""Grafting layers onto a squashfs, on file systems that are made here byte by byte; `tests/cluster` has real ones mounted."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from toolkit.images.sif import SquashfsError
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
    decode,
    read_tables,
    write_tables,
)

Tree = Mapping[str, "Tree | bytes | str | None"]  # directory, file, symbolic link, whiteout
_HEAD = Superblock(*[0] * 19)._replace(mkfs_time=1, block_size=131072, compression=6, ids=1)


class Image:
    """A squashfs as bytes, made of a tree whose files are one stored block each."""

    def __init__(self, tree: Tree) -> None:
        self.data = bytearray(SUPERBLOCK_SIZE)
        self.tables = Tables(
            _HEAD,
            0,
            bytearray(),
            bytearray(),
            bytearray(),
            bytearray(),
            bytearray(struct.pack("<I", 0)),
            bytearray(),
            bytearray(),
        )
        root = self._directory(tree, 1_000_000)
        self.tables.head = _HEAD._replace(root=root.inode)
        self.tables.data_end = len(self.data)
        head, tail = write_tables(self.tables)
        self.bytes = head + bytes(self.data[SUPERBLOCK_SIZE:]) + tail

    def _number(self) -> int:
        self.tables.export += bytes(8)
        return len(self.tables.export) // 8

    def _directory(self, tree: Tree, parent: int) -> Entry:
        number = self._number()
        entries = [self._entry(name.encode(), value, number) for name, value in tree.items()]
        start, size = append_listing(self.tables, entries)
        inode = Inode(
            DIRECTORY, 0o755, 0, 0, 7, number, links=2, start=start, size=size, parent=parent
        )
        return Entry(b"", append_inode(self.tables, inode), number, DIRECTORY)

    def _entry(self, name: bytes, value: Tree | bytes | str | None, parent: int) -> Entry:
        if isinstance(value, Mapping):
            made = self._directory(value, parent)
            return Entry(name, made.inode, made.number, DIRECTORY)
        inode = Inode(CHARACTER_DEVICE, 0, 0, 0, 7, self._number())
        if isinstance(value, bytes):
            sizes = struct.pack("<I", len(value) | 1 << 24) if value else b""
            inode = Inode(
                FILE,
                0o644,
                0,
                0,
                7,
                inode.number,
                start=len(self.data),
                size=len(value),
                sizes=sizes,
            )
            self.data += value
        elif isinstance(value, str):
            inode = Inode(
                SYMLINK, 0o777, 0, 0, 7, inode.number, size=len(value), sizes=value.encode()
            )
        return Entry(name, append_inode(self.tables, inode), inode.number, inode.kind)


def read(data: bytes) -> Tables:
    return read_tables(Reader(len(data), lambda at, length: data[at : at + length]))


def contents(data: bytes) -> dict[str, object]:
    """The tree that a reader finds."""
    tables = read(data)

    def directory(at: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for entry in list_directory(tables, read_inode(tables, at)):
            inode = read_inode(tables, entry.inode)
            assert inode.number == entry.number
            assert struct.unpack_from("<Q", tables.export, 8 * (inode.number - 1))[0] == entry.inode
            if inode.kind == DIRECTORY:
                found[entry.name.decode()] = directory(entry.inode)
            elif inode.kind == FILE:
                found[entry.name.decode()] = data[inode.start : inode.start + inode.size]
            else:
                found[entry.name.decode()] = inode.sizes.decode() if inode.kind == SYMLINK else None
        return found

    return directory(tables.head.root)


def grafted(base: Tree, *layers: Tree) -> bytes:
    """The squashfs of a base with layers on it."""
    below = Image(base)
    tables = read(below.bytes)
    data = bytearray(below.bytes[: tables.data_end])
    for layer in layers:
        above = Image(layer)
        of_layer = read(above.bytes)
        graft(tables, of_layer, SUPERBLOCK_SIZE)
        data += above.bytes[SUPERBLOCK_SIZE : of_layer.data_end]
        assert len(data) == tables.data_end
    head, tail = write_tables(tables)
    return head + bytes(data[SUPERBLOCK_SIZE:]) + tail


def test_a_layer_adds_replaces_and_deletes() -> None:
    base: Tree = {
        "etc": {"a": b"old", "b": b"stays", "c": b"goes"},
        "usr": {"bin": {"x": b"x"}},
        "link": "etc",
    }
    layer: Tree = {
        "etc": {"a": b"new", "c": None, "d": {"e": b"added"}},
        "link": {"now": b"a directory"},
    }
    assert contents(grafted(base, layer)) == {
        "etc": {"a": b"new", "b": b"stays", "d": {"e": b"added"}},
        "usr": {"bin": {"x": b"x"}},
        "link": {"now": b"a directory"},
    }


def test_a_layer_that_only_adds_leaves_directories_as_they_are() -> None:
    base, layer = (
        read(Image({"a": {"b": b"1"}}).bytes),
        read(Image({"a": {"c": b"2"}, "new": {}}).bytes),
    )
    struct.pack_into("<I", layer.ids, 0, 33)
    graft(base, layer, SUPERBLOCK_SIZE, only_adds=True)
    root = {
        entry.name: read_inode(base, entry.inode)
        for entry in list_directory(base, read_inode(base, base.head.root))
    }
    assert [entry.name for entry in list_directory(base, root[b"a"])] == [b"b", b"c"]
    assert [
        struct.unpack_from("<I", base.ids, 4 * root[name].owner)[0] for name in (b"a", b"new")
    ] == [0, 33]


def test_directories_larger_than_a_block_lead_to_each_name() -> None:
    many = {f"name-{number:05d}": b"" for number in range(3000)}
    data = grafted({"usr": {"bin": {"old": b"1"}}}, {"usr": {"bin": many}})
    assert contents(data) == {"usr": {"bin": {**dict.fromkeys(many, b""), "old": b"1"}}}
    tables = read(data)
    assert len(tables.directories) > 5 * 8192


def test_what_is_written_is_read_again_the_same() -> None:
    image = Image({"a": {"b": b"1" * 9000}, "c": "d"}).bytes
    head, tail = write_tables(read(image))
    tables = read(image)
    assert head + image[SUPERBLOCK_SIZE : tables.data_end] + tail == image


def test_what_is_broken_is_refused() -> None:
    image = Image({"a": b"1"}).bytes
    with pytest.raises(SquashfsError, match="shorter"):
        read(image[:50])
    with pytest.raises(SquashfsError, match="not a squashfs"):
        read(bytes(200))
    with pytest.raises(SquashfsError, match="cut off"):
        read(image[:-3])
    with pytest.raises(SquashfsError, match="compressed"):
        decode(struct.pack("<H", 4) + b"abcd")
