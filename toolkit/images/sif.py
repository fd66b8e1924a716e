"""The head of a SIF file, as far as it tells one image from another and a whole file from a part of one.

The layout is ``sif.header`` of github.com/sylabs/sif: fixed offsets, little-endian. Pure: works on bytes that others have read.
"""

from __future__ import annotations

import struct

from toolkit.model.base import Model

HEADER_SIZE = 128  # bytes to read from the beginning of the file
_MAGIC = b"SIF_MAGIC"
_MAGIC_AT, _ID_AT, _DATA_AT = 32, 48, 112


class Header(Model, frozen=True, kw_only=True):
    """What the head of a SIF says.

    Attributes:
        sif_id: the file's own id, 32 hexadecimal digits; a new one with every build.
        end: how many bytes the file has at least when nothing of it is cut off.
    """

    sif_id: str
    end: int


def parse(head: bytes) -> Header | None:
    """Read the first ``HEADER_SIZE`` bytes of a file; None where it is no SIF."""
    if len(head) < HEADER_SIZE or not head.startswith(_MAGIC, _MAGIC_AT):
        return None
    start, size = struct.unpack_from("<qq", head, _DATA_AT)
    return Header(sif_id=head[_ID_AT : _ID_AT + 16].hex(), end=start + size)
