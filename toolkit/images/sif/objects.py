"""The objects of a SIF file, and a head that depends on nothing but them.

Apptainer gives each SIF a random id and the time. Neither says anything that the manifest does not
say, and they keep equal images from being equal files. So before an image is signed, which fixes
its head, the id is made of the objects' hashes, and the times are set. Layout: ``sif``. Pure: works
on bytes that others have read, and says what to write where.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from toolkit.images.sif.header import PARTITION as PARTITION
from toolkit.images.sif.header import SIGNATURE as SIGNATURE
from toolkit.images.sif.header import Object as Object
from toolkit.images.sif.header import objects as objects

_ID_AT, _HEAD_TIMES_AT = 48, 64
_TIMES_AT = 41  # in a descriptor


def identity(digests: Iterable[str]) -> bytes:
    """16 bytes that stand for objects with these hashes: equal for equal ones, and of no others."""
    return hashlib.sha256("\n".join(digests).encode()).digest()[:16]


def normalised(found: Sequence[Object], sif_id: bytes, time: int) -> tuple[tuple[int, bytes], ...]:
    """What to write where, so that a SIF has this id, and this time (in seconds since 1970) in the place of each that it names."""
    times = struct.pack("<qq", time, time)
    return (
        (_ID_AT, sif_id),
        (_HEAD_TIMES_AT, times),
        *((one.at + _TIMES_AT, times) for one in found),
    )
