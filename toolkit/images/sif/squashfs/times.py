"""Make the times in a squashfs independent of when it was packed."""

from __future__ import annotations

import struct

from toolkit.images.sif.squashfs.format import SquashfsError, linear
from toolkit.images.sif.squashfs.tables import Tables

_TIME_AT, _WORD = 8, struct.Struct("<I")  # where an inode of any kind has its time


def settle(tables: Tables, since: int, time: int) -> None:
    """Set every time in the inodes that is `since` or later to `time`.

    Raises:
        SquashfsError: an inode lies outside of its table.
    """
    for (reference,) in struct.iter_unpack("<Q", tables.export):
        at = linear(reference) + _TIME_AT
        if at + _WORD.size > len(tables.inodes):
            raise SquashfsError("an inode of it is cut off")
        if _WORD.unpack_from(tables.inodes, at)[0] >= since:
            _WORD.pack_into(tables.inodes, at, time)
