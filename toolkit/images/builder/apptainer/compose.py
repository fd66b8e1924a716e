"""Compose one SIF of a base and the layers on it.

Their data are written one after the other, and then tables that know all of them. The data are
copied, not packed: by the kernel, which shares them if the file system can (reflink: XFS, Btrfs),
and otherwise at the speed of the disk.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import BuildError
from toolkit.files import open_regular
from toolkit.images.sif import SquashfsError
from toolkit.images.sif import header as sif
from toolkit.images.sif.graft import graft
from toolkit.images.sif.tables import (
    MKFS_TIME_AT,
    SUPERBLOCK_SIZE,
    Reader,
    Superblock,
    Tables,
    encode,
    read_tables,
    settle_times,
    write_tables,
)
from toolkit.images.store.cache import CacheEntry
from toolkit.images.store.sif_files import normalize, sif_errors

_CHUNK = 32 << 20  # bytes that are copied at once where the kernel cannot copy
# Between two file systems (before Linux 5.3, or of two kinds), on some network file systems, and
# under some filters of system calls.
_NOT_BY_KERNEL = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)
_PAGE = 4096


class Copier:
    """The file of an image that is composed: data first, then tables that know all of them."""

    def __init__(self, target: Path) -> None:
        self.file = target.open("w+b")
        self.handle, self.end = self.file.fileno(), sif.DATA_START
        target.chmod(0o755)

    def append(self, path: str, start: int, end: int) -> None:
        """Append these bytes of a file to all that were appended before.

        Raises:
            OSError: They could not be written.
        """
        with Path(path).open("rb") as source:
            while start < end:
                count = _copy_range(source.fileno(), start, self.handle, self.end, end - start)
                if count == 0:
                    raise OSError(f"{path} is shorter than it was")
                start, self.end = start + count, self.end + count

    def close(self) -> None:
        """Close the image; again, this does nothing."""
        self.file.close()


def _copy_range(source: int, start: int, target: int, end: int, length: int) -> int:
    """Copy bytes by the kernel, or by hand if it cannot; return their number."""
    try:
        return os.copy_file_range(source, target, length, start, end)
    except OSError as error:
        if error.errno not in _NOT_BY_KERNEL:
            raise
    return os.pwrite(target, os.pread(source, min(length, _CHUNK), start), end)


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
        return read_tables(read)


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


def graft_layers(base: CacheEntry, layers: Sequence[CacheEntry]) -> Tables:
    """Return the tables of a base with layers on it, the lowest first."""
    tables = read_image_tables(base.path)
    for layer in layers:
        graft_file(tables, layer.path)
    return tables


def data_range(path: str) -> tuple[str, int, int]:
    """Return where the data of a base's SIF or of a layer begin and end: for ``Copier.append``."""
    offset, read = open_squashfs(path)
    with sif_errors(path):
        head = Superblock.parse(read(0, min(SUPERBLOCK_SIZE, read.size)))
        if not SUPERBLOCK_SIZE <= head.inode_table <= read.size:
            raise SquashfsError(f"its tables cannot begin at {head.inode_table}")
    return path, offset + (SUPERBLOCK_SIZE if offset == 0 else 0), offset + head.inode_table


def graft_file(tables: Tables, layer: str, *, only_adds: bool = False) -> None:
    """Graft the layer of a file; ``only_adds`` as for ``graft``."""
    above = read_image_tables(layer)
    with sif_errors(layer, "a layer cannot be put on the base: "):
        graft(tables, above, SUPERBLOCK_SIZE, only_adds=only_adds)


def finish(copier: Copier, tables: Tables, definition: str, metadata: str, time: int) -> None:
    """Make the image whose data ``copier`` has written a SIF, and close it.

    Args:
        copier: The copier.
        tables: The tables of the base with all layers.
        definition: The definition that Apptainer keeps beside the file system.
        metadata: The text of Apptainer's ``inspect``.
        time: The time of the image's creation, in seconds since 1970.
    """
    superblock, tail = write_tables(tables)
    assert copier.end == sif.DATA_START + tables.data_end
    os.pwrite(copier.handle, tail, copier.end)
    os.pwrite(copier.handle, superblock, sif.DATA_START)
    size = -(-(tables.data_end + len(tail)) // _PAGE) * _PAGE
    texts = (definition.encode(), metadata.encode())
    os.pwrite(copier.handle, b"".join(texts), sif.DATA_START + size)
    sizes = (size, len(texts[0]), len(texts[1]))
    header = sif.build_header(sizes, uuid.uuid4().bytes, time, platform.machine())
    os.pwrite(copier.handle, header, 0)
    copier.close()
