"""Compose one SIF of a base and the layers on it.

Their data are written one after the other, and then tables that know all of them. The data are
copied, not packed: by the kernel, which shares them if the file system can (reflink: XFS, Btrfs),
and otherwise at the speed of the disk. The copy begins as soon as the layers are known, in parallel
with the steps that must run.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from toolkit.errors import BuildError
from toolkit.files import open_regular
from toolkit.images.host.kernel import LIBC
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.sif import SquashfsError
from toolkit.images.sif import header as sif
from toolkit.images.sif.squashfs.format import (
    MKFS_TIME_AT,
    SUPERBLOCK_SIZE,
    Reader,
    Superblock,
    encode,
)
from toolkit.images.sif.squashfs.graft import graft
from toolkit.images.sif.squashfs.tables import Tables, read_tables, settle_times, write_tables
from toolkit.images.store.cache import TABLES, Cache, CacheEntry
from toolkit.images.store.sif_files import normalize, sif_errors

_CHUNK = 32 << 20  # bytes that are copied before the disk is asked to begin writing them
# Between two file systems (before Linux 5.3, or of two kinds), on some network file systems, and
# under some filters of system calls.
_NOT_BY_KERNEL = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)
_BEGIN_WRITING = 2  # of sync_file_range
_PAGE = 4096
# Bytes of new inodes' references: with fewer, grafting a layer again is faster than reading tables.
_WORTH_KEEPING = 8 * 2000
_END = struct.Struct("<Q")


class Copier(threading.Thread):
    """A thread that writes data to the image in parallel with the build."""

    def __init__(self, target: Path) -> None:
        super().__init__(daemon=True)
        self.handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o755)
        self.end = sif.DATA_START
        self._ranges: SimpleQueue[tuple[str, int, int] | None] = SimpleQueue()
        self._error: OSError | None = None
        self._is_closed = False
        self.start()

    def append(self, path: str, start: int, end: int) -> None:
        """Append these bytes of a file to all that were appended before."""
        self._ranges.put((path, start, end))

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: It could not be written.
        """
        self._ranges.put(None)
        self.join()
        if self._error:
            raise self._error

    def run(self) -> None:
        """Copy until ``finish`` is called."""
        try:
            while next_range := self._ranges.get():
                self._copy(*next_range)
        except OSError as error:
            self._error = error

    def _copy(self, path: str, start: int, end: int) -> None:
        source = os.open(path, os.O_RDONLY)
        try:
            while start < end and not self._is_closed:
                count = _copy_range(source, start, self.handle, self.end, min(_CHUNK, end - start))
                if count == 0:
                    raise OSError(f"{path} is shorter than it was")
                with suppress(AttributeError):  # else the end of the build waits for the disk
                    LIBC.sync_file_range(
                        self.handle, ctypes.c_int64(self.end), ctypes.c_int64(count), _BEGIN_WRITING
                    )
                start, self.end = start + count, self.end + count
        finally:
            os.close(source)

    def complete(self, size: int, texts: Sequence[bytes], sif_id: bytes, time: int) -> None:
        """Make the written file system a SIF, and close it.

        Args:
            size: The size of the file system.
            texts: The definition and the metadata that Apptainer keeps beside it.
            sif_id: The id of the SIF.
            time: The time of its creation, in seconds since 1970.
        """
        sizes = (size, len(texts[0]), len(texts[1]))
        os.pwrite(self.handle, b"".join(texts), sif.DATA_START + size)
        header = sif.build_header(sizes, sif_id, time, platform.machine())
        os.pwrite(self.handle, header, 0)
        self.close()

    def close(self) -> None:
        """Copy no more, and close the image; again, this does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._ranges.put(None)
            self.join()
            os.close(self.handle)


def _copy_range(source: int, start: int, target: int, end: int, length: int) -> int:
    """Copy bytes by the kernel, or by hand if it cannot; return their number."""
    try:
        return os.copy_file_range(source, target, length, start, end)
    except OSError as error:
        if error.errno not in _NOT_BY_KERNEL:
            raise
    return os.pwrite(target, os.pread(source, length, start), end)


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


def graft_layers(
    cache: Cache, base: CacheEntry, layers: Sequence[CacheEntry], scratch: Path
) -> Tables:
    """Return the tables of a base with layers on it, and keep them in the cache.

    Args:
        cache: The caches.
        base: The base.
        layers: The layers, the lowest first.
        scratch: A directory on the file system of the caches.
    """
    keys = [base.note.digest]
    for layer in layers:
        keys.append(hash_texts(f"{keys[-1]} {layer.note.digest}"))
    count, tables = next(
        (
            (number, cached)
            for number in range(len(layers), 0, -1)
            if (cached := _read_cached_tables(cache, keys[number]))
        ),
        (0, None),
    )
    tables = tables or read_image_tables(base.path)
    for number in range(count, len(layers)):
        before = len(tables.export)
        graft_file(tables, layers[number].path)
        if len(tables.export) - before > _WORTH_KEEPING:
            about = layers[number].note.about
            _keep_tables(cache, keys[number + 1], tables, scratch / "tail", about)
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


def _read_cached_tables(cache: Cache, key: str) -> Tables | None:
    import zstandard

    entry = cache.use(TABLES, key)
    if entry is None or not cache.is_undamaged(entry):
        return None
    try:
        raw = zstandard.ZstdDecompressor().decompress(Path(entry.path).read_bytes())
        (end,) = _END.unpack_from(raw)
        split = _END.size + SUPERBLOCK_SIZE
        head, tail = raw[_END.size : split], raw[split:]
        return read_tables(Reader(end + len(tail), partial(_read_rest, head, tail, end)))
    except (OSError, zstandard.ZstdError, struct.error, SquashfsError):
        return None  # they are made again


def _read_rest(head: bytes, tail: bytes, end: int, at: int, length: int) -> bytes:
    """Return bytes of a squashfs that has only its superblock and the bytes from ``end`` on."""
    if at < SUPERBLOCK_SIZE:
        return head[at : at + length]
    return tail[at - end : at - end + length] if at >= end else b""


def _keep_tables(cache: Cache, key: str, tables: Tables, made: Path, about: str) -> None:
    import zstandard

    head, tail = write_tables(tables)
    raw = _END.pack(tables.data_end) + head + tail
    made.write_bytes(zstandard.ZstdCompressor(level=1).compress(raw))
    cache.keep(TABLES, key, made, about=about)


def finish(copier: Copier, tables: Tables, definition: str, metadata: str, time: int) -> None:
    """Complete the image whose data ``copier`` has written.

    Args:
        copier: The copier.
        tables: The tables of the base with all layers.
        definition: The definition that Apptainer keeps beside the file system.
        metadata: The text of Apptainer's ``inspect``.
        time: The time of the image's creation, in seconds since 1970.
    """
    copier.finish()
    superblock, tail = write_tables(tables)
    assert copier.end == sif.DATA_START + tables.data_end
    os.pwrite(copier.handle, tail, copier.end)
    os.pwrite(copier.handle, superblock, sif.DATA_START)
    size = -(-(tables.data_end + len(tail)) // _PAGE) * _PAGE
    texts = (definition.encode(), metadata.encode())
    copier.complete(size, texts, uuid.uuid4().bytes, time)
