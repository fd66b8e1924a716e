"""Compose one SIF of a base and the layers on it.

Their data are written one after the other, and then tables that know all of them. The data are
copied, not packed, each while later steps run; a file system that can has image and base share
theirs (reflink: XFS, Btrfs). The last layer has the metadata as Apptainer writes them.
"""

from __future__ import annotations

import json
import os
import platform
import struct
import uuid
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from threading import Event

from toolkit.errors import BuildError
from toolkit.files import open_regular
from toolkit.images.recipe.reproducible import EPOCH
from toolkit.images.sif import SquashfsError
from toolkit.images.sif import header as sif
from toolkit.images.sif.graft import graft
from toolkit.images.sif.tables import (
    MKFS_TIME_AT,
    SUPERBLOCK_SIZE,
    Reader,
    Tables,
    encode,
    read_tables,
    settle_times,
    write_tables,
)
from toolkit.images.store.sif_files import normalize, sif_errors

_CHUNK = 64 << 20  # bytes that are copied at once; a build that ends waits for them
_PAGE = 4096
_ENVIRONMENT = ".singularity.d/env/90-environment.sh"


def _append(path: str, start: int, stop: int, target: FileIO, over: Event) -> None:
    """Append these bytes of a file to another one, until ``over`` is set."""
    with Path(path).open("rb") as source:
        while start < stop and not over.is_set():
            count = min(stop - start, _CHUNK)
            try:
                copied = os.copy_file_range(source.fileno(), target.fileno(), count, start)
            # File systems that cannot do it by themselves, a Python made for an older C library, or
            # the disk is full.
            except (OSError, AttributeError):
                copied = target.write(os.pread(source.fileno(), count, start))
            if not copied:
                raise OSError(f"{path} is shorter than it was")
            start += copied


def open_squashfs(path: str) -> tuple[int, Reader]:
    """Return the offset of the squashfs in a SIF or a squashfs file, and how to read it.

    Raises:
        BuildError: The file has no squashfs.
        MalformedInputError: It is a broken SIF.
    """
    handle = open_regular(Path(path))  # closed with the last reader
    whole = os.fstat(handle.fileno()).st_size
    head = handle.read(sif.DESCRIPTORS_END)
    with sif_errors(path):
        is_bare = head.startswith(b"hsqs")
        objects = () if is_bare else sif.parse_descriptors(head, whole)
    places = [(0, whole)] if is_bare else [each.extent for each in objects if each.is_primary]
    if not places:
        raise BuildError("this file holds no squashfs", place=path)
    offset, size = places[0]
    return offset, Reader(size, lambda at, length: os.pread(handle.fileno(), length, offset + at))


def read_image_tables(path: str) -> Tables:
    """Read the tables of a SIF or a squashfs.

    Raises:
        MalformedInputError: It cannot be built upon; gives the reason.
    """
    _, read = open_squashfs(path)
    with sif_errors(path, "no layer can be put on this file system: "):
        tables = read_tables(read)
        if tables.data_end < SUPERBLOCK_SIZE:
            raise SquashfsError(f"its tables cannot begin at {tables.data_end}")
        return tables


def normalize_times(path: Path, since: int, time: int) -> None:
    """Make a SIF or squashfs that was just packed independent of the time of packing.

    Args:
        path: The file.
        since: The earliest time that is one of the packing, in seconds since 1970.
        time: The time to write instead.

    Raises:
        BuildError: Its tables cannot be read.
    """
    offset, _ = open_squashfs(str(path))
    tables = read_image_tables(str(path))
    with sif_errors(str(path)):
        settle_times(tables, since, time)
    handle = os.open(path, os.O_RDWR)
    try:
        os.pwrite(handle, encode(tables.inodes), offset + tables.head.inode_table)
        os.pwrite(handle, struct.pack("<I", time), offset + MKFS_TIME_AT)
    finally:
        os.close(handle)
    if offset:
        normalize(path, time)


def append(target: Path, path: str, over: Event) -> Tables:
    """Append the data of the base, or of a layer on those below it; return its tables.

    Args:
        target: The SIF, which does not exist before its base is appended.
        path: The base or the layer.
        over: Set when the build has ended, or a copy has failed.

    Raises:
        MalformedInputError: It cannot be built upon; gives the reason.
        OSError: The disk is full, or the file became shorter.
    """
    tables = read_image_tables(path)
    first, _ = open_squashfs(path)
    start = first + SUPERBLOCK_SIZE if target.exists() else 0
    target.touch()
    with target.open("r+b", buffering=0) as file:  # not "ab", to which the kernel copies nothing
        file.seek(0, os.SEEK_END)
        try:
            _append(path, start, first + tables.data_end, file, over)
        except OSError:
            over.set()  # what comes later is of no use, and would take the space of the steps
            raise
    return tables


def write_metadata(
    directory: Path,
    sections: Mapping[str, str],
    labels: Mapping[str, str],
    files: Mapping[str, str],
    environment: Mapping[str, str],
) -> str:
    """Write the metadata files into a directory that becomes a layer.

    As in Apptainer, the definition's variables are set after those of the base.

    Args:
        directory: An empty directory.
        sections: The image's definition, ``deffile``, and sections of it, as of ``metadata``.
        labels: The image's labels.
        files: The texts of further files of the image, by path.
        environment: The scripts of the base that set variables, by path.

    Returns:
        The text of ``inspect-metadata.json``, which holds the same facts.
    """
    labels = dict(sorted(labels.items()))
    before = environment.get(f"/{_ENVIRONMENT}") or "#!/bin/sh"
    variables = f"{before}\n\n{sections['environment']}\n"
    scripts = {name: f"#!/bin/sh\n\n{sections[name]}\n" for name in ("runscript", "test")}
    programs = {
        _ENVIRONMENT: variables,
        **{f".singularity.d/{name}": text for name, text in scripts.items()},
    }
    texts = {
        ".singularity.d/labels.json": json.dumps(labels, indent="\t"),
        ".singularity.d/Singularity": sections["deffile"],
        **{name.lstrip("/"): text for name, text in files.items()},
    }
    for name, text in {**programs, **texts}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if name in programs else 0o644)
    for inner in (path for path in directory.rglob("*") if path.is_dir()):
        inner.chmod(0o755)
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (EPOCH, EPOCH))
    attributes: dict[str, object] = {
        "environment": {**environment, f"/{_ENVIRONMENT}": variables},
        "labels": labels,
        "deffile": sections["deffile"],
        **scripts,
    }
    return json.dumps({"data": {"attributes": attributes}, "type": "container"})


def finish(
    target: Path,
    paths: Sequence[str],
    layers: Sequence[Tables],
    texts: tuple[str, str],
    time: int,
) -> None:
    """Make a SIF of the data that were appended.

    Args:
        target: What has the data.
        paths: The base, and the layers from the lowest on. The last one only adds files: it says
            nothing of the directories that they are in.
        layers: The tables of each.
        texts: The definition, and the text of Apptainer's ``inspect``, which are kept beside the
            file system.
        time: The time of the image's creation, in seconds since 1970.

    Raises:
        MalformedInputError: A layer cannot be put on what is below it.
        OSError: The disk is full.
    """
    tables, end = layers[0], target.stat().st_size
    first, _ = open_squashfs(paths[0])
    for path, layer in zip(paths[1:], layers[1:], strict=True):
        with sif_errors(path, "a layer cannot be put on the base: "):
            graft(tables, layer, SUPERBLOCK_SIZE, only_adds=path == paths[-1])
    superblock, tail = write_tables(tables)
    assert end == first + tables.data_end
    size = -(-(tables.data_end + len(tail)) // _PAGE) * _PAGE
    definition, metadata = (text.encode() for text in texts)
    sizes = (size, len(definition), len(metadata))
    header = sif.build_header(sizes, uuid.uuid4().bytes, time, platform.machine(), first)
    with target.open("r+b") as file:
        for position, data in (
            (0, header + superblock),
            (end, tail),
            (first + size, definition + metadata),
        ):
            file.seek(position)
            file.write(data)
    target.chmod(0o755)
