"""The objects of a SIF file, and a head that depends on nothing but them.

Apptainer gives each SIF a random id and the time. Neither says anything that the manifest does not say, and they keep equal images from
being equal files. So before an image is signed, which fixes its head, the id is made of the objects' hashes, and the times are set.
Layout: ``sif``. Pure: works on bytes that others have read, and says what to write where.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from toolkit.images import sif
from toolkit.model.base import Model

# kind, used, id, group, link, offset, size, size with padding, created, modified
_DESCRIPTOR = struct.Struct("<i?IIIqqqqq")
_LENGTH = 585
_TIMES_AT = 41
_ID_AT, _HEAD_TIMES_AT, _COUNTS_AT = 48, 64, 80
_COUNTS = struct.Struct("<qqqq")  # free descriptors, all descriptors, where they begin, how long they are
_NAME_AT, _NAME_LENGTH, _EXTRA_LENGTH = 73, 128, 384
_NO_GROUP = 0xF0000000
PARTITION, SIGNATURE = 0x4004, 0x4005


class Object(Model, frozen=True, kw_only=True):
    """One object of a SIF.

    Attributes:
        number: of it in the file, from 1 on.
        kind: ``PARTITION``, ``SIGNATURE`` or another.
        group: of objects that belong together and are signed together; 0: none.
        offset, size: where its data are.
        created: when, in seconds since 1970.
        at: where its descriptor is.
    """

    number: int
    kind: int
    group: int
    offset: int
    size: int
    created: int
    at: int


def objects(head: bytes) -> tuple[Object, ...]:
    """The objects by the first ``sif.HEAD_SIZE`` bytes of a file; none where it is no SIF, or has more than those tell."""
    if sif.parse(head) is None:
        return ()
    _, count, begin, length = _COUNTS.unpack_from(head, _COUNTS_AT)
    if count <= 0 or length // count != _LENGTH or begin + length > len(head):
        return ()
    found = []
    for at in range(begin, begin + length, _LENGTH):
        kind, used, number, group, _, offset, size, _, created, _ = _DESCRIPTOR.unpack_from(head, at)
        if used:
            owner = group - _NO_GROUP if group > _NO_GROUP else 0
            found.append(Object(number=number, kind=kind, group=owner, offset=offset, size=size, created=created, at=at))
    return tuple(found)


def identity(digests: Iterable[str]) -> bytes:
    """16 bytes that stand for objects with these hashes: equal for equal ones, and of no others."""
    return hashlib.sha256("\n".join(digests).encode()).digest()[:16]


def normalised(found: Sequence[Object], sif_id: bytes, time: int) -> tuple[tuple[int, bytes], ...]:
    """What to write where, so that a SIF has this id, and this time (in seconds since 1970) in the place of each that it names."""
    times = struct.pack("<qq", time, time)
    return ((_ID_AT, sif_id), (_HEAD_TIMES_AT, times), *((one.at + _TIMES_AT, times) for one in found))
