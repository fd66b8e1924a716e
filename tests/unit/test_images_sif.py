"""The bytes of images: keys and signed objects of a SIF, and layers that are grafted onto a squashfs.

`tests/cluster/test_squashfs_property.py` has real file systems; here they are made byte by byte.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Mapping
from threading import Event

import pytest

from toolkit.images.builder.apptainer.compose import append
from toolkit.images.sif import header as sif
from toolkit.images.sif.graft import (
    DIRECTORY,
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
    position_of,
    read_tables,
    settle_times,
    write_tables,
)
from toolkit.images.store.settings import inspect
from toolkit.images.store.sif_files import normalize, partition_digest, read_descriptors
from toolkit.images.store.signatures import fingerprint, is_signed

PUBLIC = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"


def test_a_public_key_has_the_fingerprint_that_openssl_says():
    words = ["openssl", "pkey", "-pubin", "-outform", "DER"]
    der = subprocess.run(words, input=PUBLIC.encode(), capture_output=True, check=True).stdout
    assert fingerprint(PUBLIC) == hashlib.sha256(der).hexdigest()
    assert fingerprint(PUBLIC.replace("\n", "\r\n")) == fingerprint(PUBLIC)


@pytest.mark.parametrize(
    "text", [PUBLIC.replace("PUBLIC", "PRIVATE"), PUBLIC.replace("MCow", "MC*w")]
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(ValueError, match=r"PUBLIC KEY|base64"):
        fingerprint(text)


def whole_sif(system: bytes, metadata: bytes = b"{}", sif_id: str = "1", time: int = 7) -> bytes:
    sizes = (len(system), 4, len(metadata))
    return (
        sif.build_header(sizes, sif_id.encode() * 16, time, "x86_64") + system + b"from" + metadata
    )


def test_the_labels_that_an_image_keeps_are_read_without_apptainer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    text = b'{"data": {"attributes": {"labels": {"a": "b"}}}}'
    (tmp_path / "x.sif").write_bytes(whole_sif(b"....", text))
    assert inspect(tmp_path / "x.sif") == {"labels": {"a": "b"}, "environment": {}}


def test_the_same_contents_become_the_same_file(tmp_path):
    one, same, other = (tmp_path / f"{name}.sif" for name in ("one", "same", "other"))
    one.write_bytes(whole_sif(b"a" * 4096))
    same.write_bytes(whole_sif(b"a" * 4096, sif_id="2", time=1000))
    other.write_bytes(whole_sif(b"b" * 4096))
    assert partition_digest(one) == hashlib.sha256(b"a" * 4096).hexdigest()
    sif_id = normalize(one, 1700000000)
    assert sif_id == normalize(same, 1700000000) != normalize(other, 1700000000)
    assert one.read_bytes() == same.read_bytes()
    assert not is_signed(one)
    groups = {each.group_id & 0xFF for each in read_descriptors(one)}
    assert groups == {1}, "they are signed together"


Tree = Mapping[str, "Tree | str"]  # directory, symbolic link
HEAD = Superblock(*[0] * 19)._replace(mkfs_time=1, block_size=131072, compression=6, ids=1)


def squashfs(tree: Tree, data: bytes = b"") -> bytes:
    """A squashfs of a tree whose files are not told of, and whose only owner is root."""
    empty = [bytearray() for _ in range(7)]
    empty[4] += bytes(4)
    tables = Tables(HEAD, SUPERBLOCK_SIZE + len(data), *empty)
    root = add(tables, b"", tree, 1_000_000)
    tables.head = HEAD._replace(root=root.inode)
    return data.join(write_tables(tables))


def add(tables: Tables, name: bytes, value: Tree | str, parent: int) -> Entry:
    tables.export += bytes(8)
    number = len(tables.export) // 8
    if isinstance(value, str):
        inode = Inode(SYMLINK, 0o755, 0, 0, 7, number, size=len(value), sizes=value.encode())
    else:
        inner = [add(tables, key.encode(), each, number) for key, each in value.items()]
        start, size = append_listing(tables, inner)
        inode = Inode(DIRECTORY, 0o755, 0, 0, 7, number, start=start, size=size, parent=parent)
    return Entry(name, append_inode(tables, inode), number, inode.kind)


def read(data: bytes) -> Tables:
    return read_tables(Reader(len(data), lambda at, length: data[at : at + length]))


def test_a_layer_that_only_adds_leaves_directories_as_they_are():
    base, layer = read(squashfs({"a": {}})), read(squashfs({"a": {}, "new": {}}))
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
    base = squashfs({"a": {}}, b"of the base")
    for name, data in (("base", base), ("layer", squashfs({"new": {}}, b"of the layer"))):
        (tmp_path / name).write_bytes(data)
        append(tmp_path / "sif", str(tmp_path / name), Event())
    assert (tmp_path / "sif").read_bytes() == base[:SUPERBLOCK_SIZE] + b"of the baseof the layer"


def test_times_since_the_packing_are_settled_and_older_ones_stay():
    """Of so many inodes, of different lengths, that some lie across two blocks of the table."""
    tables = read(squashfs({f"link-{number}": "x" * (number % 40 + 1) for number in range(12000)}))
    export = struct.iter_unpack("<Q", tables.export)
    places = [position_of(reference) + 8 for (reference,) in export]
    assert any(place // 8192 != (place + 3) // 8192 for place in places)
    before = [1000 + number % 7 for number in range(len(places))]
    for place, time in zip(places, before, strict=True):
        struct.pack_into("<I", tables.inodes, place, time)
    rest = bytes(tables.inodes)
    settle_times(tables, 1003, 7)
    for place, time in zip(places, before, strict=True):
        expected = 7 if time >= 1003 else time
        assert struct.unpack_from("<I", tables.inodes, place)[0] == expected
        struct.pack_into("<I", tables.inodes, place, time)
    assert tables.inodes == rest
