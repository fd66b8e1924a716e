"""Compose one SIF of a base and the layers on it.

Their data are written one after the other, and then tables that know all of them. The data are
copied, not packed. Those of the base are copied while the steps run; if the file system can, both
share them (reflink: XFS, Btrfs).
"""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from toolkit.errors import BuildError
from toolkit.files import open_regular
from toolkit.images.builder.follow import start, stop
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

_CHUNK = 4 << 20  # bytes that are copied at once
_PAGE = 4096


def _append(path: str, start: int, stop: int, target: BinaryIO) -> None:
    """Append these bytes of a file to another one."""
    with Path(path).open("rb") as source:
        source.seek(start)
        while start < stop:
            data = source.read(min(stop - start, _CHUNK))
            if not data:
                raise OSError(f"{path} is shorter than it was")
            target.write(data)
            start += len(data)


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
        place = (0, whole) if head.startswith(b"hsqs") else sif.find_partition(head, whole)
    if place is None:
        raise BuildError("this file holds no squashfs", place=path)
    offset, size = place
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


@contextmanager
def copying(base: str, target: Path) -> Iterator[subprocess.Popen[str]]:
    """Copy a base to a new file meanwhile; yield the program that does it."""
    command = ("cp", "--reflink=auto", "--no-preserve=all", base, str(target))
    with start(command, os.environ) as process:
        try:
            yield process
        finally:
            stop(process)


def write_image(
    target: Path,
    paths: Sequence[str],
    texts: tuple[str, str],
    time: int,
    copy: subprocess.Popen[str],
) -> None:
    """Write a SIF of a base and of the layers on it.

    Args:
        target: The SIF.
        paths: The base, and the layers from the lowest on. The last one only adds files: it says
            nothing of the directories that they are in.
        texts: The definition, and the text of Apptainer's ``inspect``, which are kept beside the
            file system.
        time: The time of the image's creation, in seconds since 1970.
        copy: What ``copying`` yields.

    Raises:
        MalformedInputError: A layer cannot be put on what is below it.
        OSError: The disk is full, or a file became shorter.
    """
    tables = read_image_tables(paths[0])
    first, _ = open_squashfs(paths[0])
    data_end, parts = first + tables.data_end, []
    for path in paths[1:]:
        layer = read_image_tables(path)
        parts.append((path, layer.data_end))
        with sif_errors(path, "a layer cannot be put on the base: "):
            graft(tables, layer, SUPERBLOCK_SIZE, only_adds=path == paths[-1])
    superblock, tail = write_tables(tables)
    size = -(-(tables.data_end + len(tail)) // _PAGE) * _PAGE
    definition, metadata = (text.encode() for text in texts)
    sizes = (size, len(definition), len(metadata))
    is_copied = copy.wait() == 0
    with target.open("r+b" if is_copied else "w+b") as file:
        if not is_copied:  # this time with the reason for the failure
            _append(paths[0], 0, data_end, file)
        file.seek(file.truncate(data_end))
        for path, last in parts:
            _append(path, SUPERBLOCK_SIZE, last, file)
        end = file.tell()
        assert end == first + tables.data_end
        header = sif.build_header(sizes, uuid.uuid4().bytes, time, platform.machine(), first)
        for position, data in (
            (0, header + superblock),
            (end, tail),
            (first + size, definition + metadata),
        ):
            file.seek(position)
            file.write(data)
    target.chmod(0o755)
