"""A base and the layers on it become one SIF: their data one after the other, and tables that know all of them.

The base's data are copied, not packed: by the kernel, which shares them where the file system can
(reflink: XFS, Btrfs), and at the speed of the disk elsewhere. It begins as soon as it is known
which layers there are, beside the steps that have to run.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import struct
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from toolkit.errors import BuildError
from toolkit.files import open_regular
from toolkit.images.build.apptainer import identity
from toolkit.images.build.apptainer.cache import TABLES, Cache, CacheEntry
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
from toolkit.images.store.sif_files import normalize, read_text_object, sif_errors

_PIECE = 32 << 20  # bytes that are copied before the disk is asked to begin writing them
_LIBC = ctypes.CDLL(None, use_errno=True)
# Between two file systems (before Linux 5.3, or of two kinds), on some network file systems, and
# below some filters of system calls.
_NOT_BY_KERNEL = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)
_BEGIN_WRITING = 2  # of sync_file_range
_PAGE = 4096
_WORTH_IT = (
    8 * 2000
)  # bytes of new inodes' references: with fewer, a layer is sooner grafted again than its tables are read
_END = struct.Struct("<Q")


class Copier(threading.Thread):
    """Writes data to the image while something else is done; ``append`` adds to its work, ``finish`` waits for it."""

    def __init__(self, target: Path) -> None:
        super().__init__(daemon=True)
        self.handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o755)
        self.end = sif.DATA_START
        self._todo: list[tuple[str, int, int]] = []
        self._changed = threading.Condition()
        self._over = False
        self._error: OSError | None = None
        self.start()

    def append(self, path: str, start: int, end: int) -> None:
        """Put these bytes of a file behind all that were appended before."""
        with self._changed:
            self._todo.append((path, start, end))
            self._changed.notify()

    def finish(self) -> None:
        """Wait until everything is there.

        Raises:
            OSError: it could not be written.
        """
        with self._changed:
            self._over = True
            self._changed.notify()
        self.join()
        if self._error:
            raise self._error

    def run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._todo and not self._over:
                        self._changed.wait()
                    if not self._todo:
                        return
                    path, start, end = self._todo.pop(0)
                self._copy(path, start, end)
        except OSError as error:
            self._error = error

    def _copy(self, path: str, start: int, end: int) -> None:
        source = os.open(path, os.O_RDONLY)
        try:
            while start < end:
                done = _copied(source, start, self.handle, self.end, min(_PIECE, end - start))
                if done == 0:
                    raise OSError(f"{path} is shorter than it was")
                with suppress(AttributeError):  # it is the end of the build that waits for the disk
                    _LIBC.sync_file_range(
                        self.handle, ctypes.c_int64(self.end), ctypes.c_int64(done), _BEGIN_WRITING
                    )
                start, self.end = start + done, self.end + done
        finally:
            os.close(source)


def _copied(source: int, start: int, target: int, end: int, length: int) -> int:
    """Copy bytes by the kernel, or by hand where it does not; return how many there were."""
    try:
        return os.copy_file_range(source, target, length, start, end)
    except OSError as error:
        if error.errno not in _NOT_BY_KERNEL:
            raise
    return os.pwrite(target, os.pread(source, length, start), end)


def open_squashfs(path: str) -> tuple[int, Reader]:
    """Where the squashfs of a SIF begins, and how to read it; a file that is a squashfs begins with it.

    Raises:
        BuildError: there is none in it.
        MalformedInputError: it is a broken SIF.
    """
    handle = open_regular(Path(path))  # closed when nobody reads any more
    whole = os.fstat(handle.fileno()).st_size
    head = handle.read(sif.DESCRIPTORS_END)
    with sif_errors(path):
        place = (0, whole) if head.startswith(b"hsqs") else sif.find_partition(head, whole)
    if place is None:
        raise BuildError("this file holds no squashfs", place=path)
    offset, size = place
    return offset, Reader(size, lambda at, length: os.pread(handle.fileno(), length, offset + at))


def labels_of(path: str) -> dict[str, str]:
    """Return the labels of a SIF."""
    return identity.labels_of(read_text_object(Path(path), sif.find_labels))


def read_image_tables(path: str) -> Tables:
    """Read the tables of a SIF or a squashfs.

    Raises:
        MalformedInputError: it cannot be built upon; says why.
    """
    _, read = open_squashfs(path)
    with sif_errors(path, "nothing can be put on this file system: "):
        return read_tables(read)


def normalize_times(path: Path, since: int, time: int) -> None:
    """Make a SIF that was just packed, or a squashfs, the same as one that is packed of the same contents at another time.

    Args:
        since: from when on a time in it is one of the packing, in seconds since 1970.
        time: what is put in its place.

    Raises:
        BuildError: its tables cannot be read.
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
    """The tables of a base with layers on it; those of what was there before are remembered.

    Args:
        scratch: a directory on the file system of the caches.
    """
    keys = [base.note.digest]
    for layer in layers:
        keys.append(hashlib.sha256(f"{keys[-1]} {layer.note.digest}".encode()).hexdigest())
    count, tables = next(
        ((n, found) for n in range(len(layers), 0, -1) if (found := _remembered(cache, keys[n]))),
        (0, None),
    )
    tables = tables or read_image_tables(base.path)
    for number in range(count, len(layers)):
        before = len(tables.export)
        graft_file(tables, layers[number].path)
        if len(tables.export) - before > _WORTH_IT:
            _remember(cache, keys[number + 1], tables, scratch / "tail", layers[number].note.about)
    return tables


def data_range(path: str) -> tuple[str, int, int]:
    """Where the data of a SIF's base, or of a layer, begin and end in their file: for ``Copier.append``."""
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


def _remembered(cache: Cache, key: str) -> Tables | None:
    import zstandard

    kept = cache.use(TABLES, key)
    if kept is None or not cache.is_undamaged(kept):
        return None
    try:
        raw = zstandard.ZstdDecompressor().decompress(Path(kept.path).read_bytes())
        (end,) = _END.unpack_from(raw)
        head, tail = (
            raw[_END.size : _END.size + SUPERBLOCK_SIZE],
            raw[_END.size + SUPERBLOCK_SIZE :],
        )
        return read_tables(Reader(end + len(tail), partial(_rest, head, tail, end)))
    except (OSError, zstandard.ZstdError, struct.error, SquashfsError):
        return None  # they are made again


def _rest(head: bytes, tail: bytes, end: int, at: int, length: int) -> bytes:
    """Return bytes of a squashfs of which only the superblock and what follows ``end`` is there."""
    if at < SUPERBLOCK_SIZE:
        return head[at : at + length]
    return tail[at - end : at - end + length] if at >= end else b""


def _remember(cache: Cache, key: str, tables: Tables, made: Path, about: str) -> None:
    import zstandard

    head, tail = write_tables(tables)
    made.write_bytes(
        zstandard.ZstdCompressor(level=1).compress(_END.pack(tables.data_end) + head + tail)
    )
    cache.keep(TABLES, key, made, about=about)


def finish(copier: Copier, tables: Tables, definition: str, metadata: str, time: int) -> bytes:
    """Complete the image whose data ``copier`` has written; its id.

    Args:
        definition, metadata: what Apptainer keeps beside the file system, and shows by ``inspect``.
        time: of the making, in seconds since 1970.
    """
    copier.finish()
    superblock, tail = write_tables(tables)
    assert copier.end == sif.DATA_START + tables.data_end
    system = -(-(tables.data_end + len(tail)) // _PAGE) * _PAGE
    texts = [definition.encode(), metadata.encode()]
    at = sif.DATA_START + system
    sizes = (system, len(texts[0]), len(texts[1]))
    sif_id = uuid.uuid4().bytes
    os.pwrite(copier.handle, tail, copier.end)
    os.pwrite(copier.handle, b"".join(texts), at)
    os.pwrite(
        copier.handle, sif.build_header(sizes, sif_id, time, platform.machine()) + superblock, 0
    )
    os.close(copier.handle)
    return sif_id
