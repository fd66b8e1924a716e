"""Grafts of random trees, compared by `unsquashfs` with the same trees packed at once.

`sqfstar` packs from an archive, so owners, devices and extended attributes need no privilege.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from toolkit.images.sif import BLOCK_SIZE, UNCOMPRESSED_TABLES
from toolkit.images.sif.graft import graft
from toolkit.images.sif.tables import SUPERBLOCK_SIZE, Reader, Tables, read_tables, write_tables

_SMALL = ("-mem", "32M", "-processors", "1")  # most of the time goes into buffers and threads
_DATA_FOLLOW = b"# START OF DATA - DO NOT MODIFY\n"
_WHITEOUT = tarfile.CHRTYPE


# Without shrinking, which would pack trees for minutes.
_settings = partial(settings, deadline=None, phases=(Phase.explicit, Phase.generate))


class Node(NamedTuple):
    """A file, link, device or directory. One object below several names is a file with links."""

    kind: bytes
    mode: int = 0o644
    owner: int = 0
    group: int = 0
    time: int = 0
    byte: bytes = b""  # of which its data consist: an example that fails is shown in full
    size: int = 0
    target: str = ""
    attribute: str = ""
    children: dict[str, Node] | None = None


_NAMES = st.sampled_from("abcdefgh") | st.text("aZ0.-é漢", min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..")
)
_SIZES = (0, 1, 3000, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 5000)
_BYTES = st.binary(min_size=1, max_size=1)
_OWNERS = st.sampled_from((0, 1, 33, 1000, 65534, 4_000_000_000))
_TIMES = st.integers(0, 2**31 - 1)
_FILES = st.builds(
    partial(Node, tarfile.REGTYPE),
    mode=st.sampled_from((0o644, 0o4755, 0o600)),
    owner=_OWNERS,
    group=_OWNERS,
    time=_TIMES,
    byte=_BYTES,
    size=st.sampled_from(_SIZES),
    attribute=st.sampled_from(("", "", "short", "long" * 300)),
)
_SYMLINKS = st.builds(
    partial(Node, tarfile.SYMTYPE, 0o777), owner=_OWNERS, time=_TIMES, target=_NAMES
)
_FIFOS = st.builds(partial(Node, tarfile.FIFOTYPE, 0o600), owner=_OWNERS, time=_TIMES)
_DELETIONS = st.just(Node(_WHITEOUT, 0))


def _directory(
    mode: int, owner: int, time: int, crowd: int, children: dict[str, Node], links: int
) -> Node:
    """Return a directory with these children, many empty files, and some hard links."""
    entries = {f"one of many {number:04}": Node(tarfile.REGTYPE) for number in range(crowd)}
    files = {name: node for name, node in children.items() if node.kind == tarfile.REGTYPE}
    linked = {f"{name}{number}": node for name, node in files.items() for number in range(links)}
    return Node(tarfile.DIRTYPE, mode, owner, time=time, children={**entries, **linked, **children})


def _trees(
    leaves: st.SearchStrategy[Node], crowds: tuple[int, ...] = (0, 0, 0, 0, 300, 700)
) -> st.SearchStrategy[Node]:
    def directories(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        return st.builds(
            _directory,
            st.sampled_from((0o755, 0o1777, 0o2750)),
            _OWNERS,
            _TIMES,
            st.sampled_from(crowds),
            st.dictionaries(_NAMES, children, max_size=5),
            st.sampled_from((0, 0, 1, 2)),
        )

    return directories(st.recursive(leaves, directories, max_leaves=20))


_LAYERS = _trees(_FILES | _SYMLINKS | _DELETIONS)


def _merged(base: Node | None, layer: Node) -> Node:
    """Return what overlayfs shows of a directory of a layer on one of a base."""
    merged = dict((base.children if base else None) or {})
    for name, node in (layer.children or {}).items():
        if node.kind == _WHITEOUT:
            merged.pop(name, None)
        else:
            is_directory = node.kind == tarfile.DIRTYPE
            merged[name] = _merged(merged.get(name), node) if is_directory else node
    return layer._replace(children=merged)


def _add(archive: tarfile.TarFile, path: str, node: Node, known: dict[int, str]) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.uid, member.gid = node.kind, node.mode, node.owner, node.group
    member.mtime, member.linkname = node.time, node.target
    if node.kind == tarfile.REGTYPE and known.setdefault(id(node), path) != path:
        member.type, member.linkname = tarfile.LNKTYPE, known[id(node)]
    else:
        member.size = node.size
        member.pax_headers = {"SCHILY.xattr.user.note": node.attribute} if node.attribute else {}
    archive.addfile(member, io.BytesIO(node.byte * node.size))
    for name, child in sorted((node.children or {}).items()):
        _add(archive, f"{path}/{name}", child, known)


def _packed(tree: Node, place: Path) -> bytes:
    """Pack a tree as the directory `top`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "top", tree, {})
    options = f"-comp zstd -b {BLOCK_SIZE} -no-progress -exports".split()
    words = ["sqfstar", *UNCOMPRESSED_TABLES, *options, *_SMALL, str(place)]
    subprocess.run(words, input=stream.getvalue(), check=True, capture_output=True)
    return place.read_bytes()


def _read(data: bytes) -> Tables:
    return read_tables(Reader(len(data), lambda at, length: data[at : at + length]))


def _grafted(images: list[bytes]) -> bytes:
    """Return the first image with the others grafted onto it."""
    tables = _read(images[0])
    data = images[0][SUPERBLOCK_SIZE : tables.data_end]
    for image in images[1:]:
        layer = _read(image)
        graft(tables, layer, SUPERBLOCK_SIZE)
        data += image[SUPERBLOCK_SIZE : layer.data_end]
    head, tail = write_tables(tables)
    return head + data + tail


def _unsquashfs(*words: str) -> None:
    small = ("-processors", "1", "-da", "8", "-fr", "8")
    subprocess.run(["unsquashfs", *small, *words], check=True, capture_output=True)


def _described(image: Path) -> list[str]:
    """Return how `unsquashfs` describes each file (owner, mode, time, links) and the hash of all data."""
    pseudo = image.with_suffix(".pseudo")
    _unsquashfs("-pf", str(pseudo), str(image))
    rows, found, data = pseudo.read_bytes().partition(_DATA_FOLLOW)
    assert found
    described = rows.decode(errors="backslashreplace").splitlines()
    return [*(row for row in described if row.startswith("top")), sha256(data).hexdigest()]


def _attributes(image: Path, place: Path) -> dict[str, bytes]:
    """Return the extended attribute that each extracted file has."""
    _unsquashfs("-user-xattrs", "-no-exit-code", "-no-progress", "-d", str(place), str(image))
    attributes = {}
    for path in place.rglob("*"):
        with suppress(OSError):
            attribute = os.getxattr(path, "user.note", follow_symlinks=False)
            attributes[str(path.relative_to(place))] = attribute
    return attributes


def _all_files(tree: Node) -> Iterator[Node]:
    yield tree
    for child in (tree.children or {}).values():
        yield from _all_files(child)


def _graft_and_pack(base: Node, layers: list[Node], place: Path) -> Node:
    """Write the graft to `grafted`, the same tree packed at once to `packed`, and return the tree."""
    images = [_packed(one, place / f"{number}") for number, one in enumerate((base, *layers))]
    (place / "grafted").write_bytes(_grafted(images))
    tree = base
    for layer in layers:
        tree = _merged(tree, layer)
    _packed(tree, place / "packed")
    return tree


@_settings(max_examples=30)
@given(_trees(_FILES | _SYMLINKS | _FIFOS), st.lists(_LAYERS, min_size=1, max_size=3))
def test_a_graft_reads_as_the_tree_that_is_packed_at_once(base, layers):
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        tree = _graft_and_pack(base, layers, place)
        rows, packed_rows = (_described(place / name) for name in ("grafted", "packed"))
        # pytest takes minutes to show how two long lists differ.
        unlike = [pair for pair in zip_longest(rows, packed_rows) if pair[0] != pair[1]]
        assert unlike[:1] == []
        # Since 4.6, unsquashfs has a row for each extended attribute as well.
        files = [row for row in rows if " x user.note=" not in row]
        assert len(files) == len(list(_all_files(tree))) + 1


@_settings(max_examples=6)
@given(_trees(_FILES, crowds=(0,)), st.lists(_trees(_FILES | _DELETIONS, crowds=(0,)), max_size=2))
def test_a_graft_keeps_extended_attributes(base, layers):
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        tree = _graft_and_pack(base, layers, place)
        expected = _attributes(place / "packed", place / "of the packed")
        assert _attributes(place / "grafted", place / "of the grafted") == expected
        assert bool(expected) == any(node.attribute for node in _all_files(tree))
