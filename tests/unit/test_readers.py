"""Readers of what others made: one class of error, bounded memory, nothing written outside."""

from __future__ import annotations

import os
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers import READERS, broken, check, tables
from toolkit.errors import ImageMissingError, MalformedInputError, ToolkitError
from toolkit.files import read_text
from toolkit.images.builder.apptainer import compose
from toolkit.images.sif import SquashfsError
from toolkit.images.sif.graft import (
    DIRECTORY,
    Entry,
    Inode,
    append_inode,
    append_listing,
    graft,
    list_directory,
)
from toolkit.images.sif.tables import Tables, decode, reference_to
from toolkit.images.store import store
from toolkit.images.store.sif_files import partition_digest, read_descriptors

SIF = READERS["sif"].seeds[0]
BASE, LAYER = READERS["squashfs"].seeds


def examined(name: str, data: bytes) -> str:
    with tempfile.TemporaryDirectory() as directory:
        return check(READERS[name], data, Path(directory))


@pytest.mark.parametrize("name", READERS)
def test_what_is_whole_is_read(name):
    assert {examined(name, seed) for seed in READERS[name].seeds} == {"read"}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=100)
@given(st.data())
def test_what_is_broken_ends_with_one_class_of_error(name, data):
    seed = data.draw(st.sampled_from(READERS[name].seeds))
    examined(name, broken(seed, Random(data.draw(st.integers(0, 2**32)))))


def test_a_hash_that_is_a_number_is_none():
    assert examined("pylock", READERS["pylock"].seeds[0].replace(b'"cc"', b"1e999")) == "read"


def peak(function: Callable[[], object]) -> int:
    """Bytes that a function takes at most."""
    tracemalloc.start()
    try:
        with suppress(ToolkitError, SquashfsError):
            function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def patched(data: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


OFFSET, SIZE = 4096 + 17, 4096 + 25  # of the first object of a SIF, in its descriptor
COUNT, BEGIN = 88, 96


@pytest.mark.parametrize("value", [-1, -(2**63), 2**63 - 1, 10**12])
@pytest.mark.parametrize("at", [OFFSET, SIZE, OFFSET + 2 * 585, SIZE + 2 * 585, COUNT, BEGIN])
def test_numbers_of_a_sif_are_compared_with_its_size(tmp_path, at, value):
    path = tmp_path / "x.sif"
    path.write_bytes(patched(SIF, at, "<q", value))
    with pytest.raises(MalformedInputError, match="broken at byte") as raised:
        read_descriptors(path)
    assert (raised.value.place, raised.value.exit_code) == (str(path), 95)
    for read in (partition_digest, lambda one: compose.read_image_tables(str(one))):
        with pytest.raises(MalformedInputError):
            read(path)


# Of the superblock: what it says of sizes and places of tables, and the position of each.
FIELDS = {
    "inodes": (4, "<I"),
    "block size": (12, "<I"),
    "fragments": (16, "<I"),
    "ids": (26, "<H"),
    "root": (32, "<Q"),
}
FIELDS |= {f"table {number}": (48 + 8 * number, "<Q") for number in range(6)}


@pytest.mark.parametrize("value", [0, 1, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 2])
@pytest.mark.parametrize("field", FIELDS)
def test_numbers_of_a_superblock_are_compared_with_its_size(field, value):
    at, form = FIELDS[field]
    if value >= 1 << 8 * struct.calcsize(form):
        return
    data = patched(BASE, at, form, value)
    assert peak(lambda: tables(data)) < 8 << 20
    assert examined("squashfs", data) in ("read", "SquashfsError")
    assert examined("base", data) in ("read", "SquashfsError")


def test_a_block_that_wants_gigabytes_gets_none():
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(bytes(300)))
    # A single segment of 8 GiB.
    huge = frame[:4] + bytes([0xE0]) + struct.pack("<Q", 8 << 30) + frame[5 + 2 :]
    table = struct.pack("<H", len(huge)) + bytes(huge)
    assert peak(lambda: decode(table, 6)) < 1 << 20
    with pytest.raises(SquashfsError, match="8589934592 bytes"):
        decode(table, 6)


def directories(*levels: tuple[int, ...]) -> Tables:
    """Tables of nothing but directories: each level names the levels that its entries lead to."""
    made = tables(LAYER)
    made.inodes, made.directories = bytearray(), bytearray()
    made.export = bytearray(8 * len(levels))
    size = 40  # of an inode of a directory: so it is known where each will be
    for number, leads_to in enumerate(levels):
        entries = [
            Entry(b"%02d" % place, reference_to(size * level), level + 1, DIRECTORY)
            for place, level in enumerate(leads_to)
        ]
        start, length = append_listing(made, entries)
        inode = Inode(DIRECTORY, 0o755, 0, 0, 0, number + 1, start=start, size=length)
        assert append_inode(made, inode) == reference_to(size * number)
    made.head = made.head._replace(root=reference_to(0), inodes=len(levels))
    return made


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        (((0,),), "nested deeper|within themselves"),
        (((1,), (0,)), "nested deeper|within themselves"),
        ((*((level + 1, level + 1) for level in range(40)), ()), "lie on each other"),
        ((*((level + 1,) for level in range(500)), ()), "nested deeper"),
    ],
    ids=["itself", "a circle", "two to the power of forty", "five hundred deep"],
)
def test_directories_have_an_end(levels, error):
    with pytest.raises(SquashfsError, match=error):
        graft(tables(BASE), directories(*levels), 96)


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"a\0b"])
def test_a_name_that_is_a_path_is_refused(name):
    layer = tables(LAYER)
    layer.directories = bytearray()
    start, size = append_listing(layer, [Entry(name, layer.head.root, 1, DIRECTORY)])
    with pytest.raises(SquashfsError, match="is not a name of a file"):
        list(list_directory(layer, Inode(DIRECTORY, 0, 0, 0, 0, 1, start=start, size=size)))


def test_pipes_and_huge_files_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.sif")
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(ImageMissingError, match="not a regular file"):
        store.find(str(tmp_path / "x.sif"))
    (tmp_path / "y.sif").write_bytes(SIF)
    (tmp_path / "y.json").touch()
    os.truncate(tmp_path / "y.json", 1 << 40)
    assert store.find(str(tmp_path / "y.sif")).manifest is None
    with pytest.raises(OSError, match="larger"):
        read_text(tmp_path / "y.json")
    (tmp_path / "y.json").unlink()
    os.mkfifo(tmp_path / "y.json")
    assert store.find(str(tmp_path / "y.sif")).manifest is None
