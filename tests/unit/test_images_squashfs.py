"""Grafting layers onto a squashfs that is made here byte by byte; `tests/cluster/test_squashfs_property.py` has real ones."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from threading import Event

from toolkit.images.builder.apptainer.compose import append
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


def read(data):
    return read_tables(Reader(len(data), lambda at, length: data[at : at + length]))


def test_a_layer_that_only_adds_leaves_directories_as_they_are():
    base, layer = read(Image({"a": {}}).bytes), read(Image({"a": {}, "new": {}}).bytes)
    struct.pack_into("<I", layer.ids, 0, 33)
    graft(base, layer, SUPERBLOCK_SIZE, only_adds=True)
    owners = {}
    for entry in list_directory(base, read_inode(base, base.head.root)):
        inode = read_inode(base, entry.inode)
        assert inode.number == entry.number
        assert struct.unpack_from("<Q", base.export, 8 * (inode.number - 1))[0] == entry.inode
        owners[entry.name] = struct.unpack_from("<I", base.ids, 4 * inode.owner)[0]
    assert owners == {b"a": 0, b"new": 33}


def test_data_are_appended_also_by_a_python_that_cannot_ask_the_kernel(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range")
    (tmp_path / "base").write_bytes(base := Image({"a": {}}).bytes)
    (tmp_path / "layer").write_bytes(layer := Image({"a": {}, "new": {}}).bytes)
    ends = [
        append(tmp_path / "sif", str(tmp_path / name), Event()).data_end
        for name in ("base", "layer")
    ]
    assert (tmp_path / "sif").read_bytes() == base[: ends[0]] + layer[SUPERBLOCK_SIZE : ends[1]]
