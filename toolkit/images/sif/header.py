"""Parse and write the first 32 KiB of a SIF: its global header and the table of its objects.

The layout is that of the package ``sif`` of github.com/sylabs/sif: fixed offsets, little-endian.
Every number is compared with the size of the file before anything relies on it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from toolkit.images.sif import SifError

HEADER_SIZE = 128  # bytes of the global header
DATA_START = 32768  # where the first object of a SIF begins that this module writes
_MAGIC = b"SIF_MAGIC"
_MAGIC_AT, ID_AT, TIMES_AT, _COUNTS_AT, _DATA_AT = 32, 48, 64, 80, 112
_HEADER = struct.Struct("<32s10s3s3s16s8q")
_COUNTS = struct.Struct("<3q")  # free descriptors, all descriptors, position of the first
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
DESCRIPTOR_TIMES_AT = 41
_DESCRIPTORS_AT, _MOST_DESCRIPTORS = 4096, 48
DESCRIPTORS_END = _DESCRIPTORS_AT + _MOST_DESCRIPTORS * _DESCRIPTOR.size
DEFINITION, PARTITION, SIGNATURE, JSON, BILL = 0x4001, 0x4004, 0x4005, 0x4006, 0x4009
METADATA = "inspect-metadata.json"  # the name of what `apptainer inspect` shows
_GROUP_MASK = 0xF0000000
_PARTITION_FACTS = struct.Struct("<ii3s")  # file system, role of the partition, architecture
_SQUASHFS, _PRIMARY = 1, 2
_ARCHITECTURES = {"x86_64": b"02", "aarch64": b"04", "ppc64le": b"06", "s390x": b"09"}

Extent = tuple[int, int]  # position in the file, and length in bytes


class Header(NamedTuple):
    """The facts of a global header that callers need.

    Attributes:
        sif_id: the id of the file, 32 hexadecimal digits; each build makes a new descriptor.
        end: the size that the file has at least if it is complete.
    """

    sif_id: str
    end: int


class Descriptor(NamedTuple):
    """One object of a SIF, with the fields of ``sif.rawDescriptor`` in their order.

    Attributes:
        position: where the descriptor itself is in the file.
        data_type: ``PARTITION``, ``SIGNATURE`` or another of the constants.
        number: the number of the object in the file, from 1 on.
        group_id: the group that is signed together, with the bits of ``_GROUP_MASK`` set.
        offset: where the data of the object begin.
        extra: facts that only objects of this type have.
    """

    position: int
    data_type: int
    is_used: bool
    number: int
    group_id: int
    link: int
    offset: int
    size: int
    padded_size: int
    created: int
    modified: int
    user: int
    user_group: int
    name: bytes
    extra: bytes

    @property
    def label(self) -> str:
        """The name of the object; empty if it has none."""
        return self.name.rstrip(b"\0").decode(errors="replace")

    @property
    def extent(self) -> Extent:
        """Position and length of the data."""
        return self.offset, self.size

    @property
    def is_primary(self) -> bool:
        """Is this the squashfs that a container starts from?"""
        facts = _PARTITION_FACTS.unpack_from(self.extra)
        return self.data_type == PARTITION and facts[:2] == (_SQUASHFS, _PRIMARY)


def parse_header(head: bytes) -> Header | None:
    """Parse the first ``HEADER_SIZE`` bytes of a file. Return None if it is not a SIF.

    Raises:
        SifError: it begins as a SIF does, and its numbers are impossible.
    """
    if len(head) < HEADER_SIZE or not head.startswith(_MAGIC, _MAGIC_AT):
        return None
    start, size = struct.unpack_from("<qq", head, _DATA_AT)
    if start < 0 or size < 0:
        raise _broken(f"its data begin at {start} and are {size} bytes long", _DATA_AT)
    return Header(sif_id=head[ID_AT : ID_AT + 16].hex(), end=start + size)


def parse_architecture(head: bytes) -> str:
    """Return the architecture of a SIF as ``uname -m`` writes it; empty if it is unknown."""
    if parse_header(head) is None:
        return ""
    code = _HEADER.unpack_from(head)[3].rstrip(b"\0")
    return next((name for name, known in _ARCHITECTURES.items() if known == code), "")


def parse_descriptors(head: bytes, file_size: int | None = None) -> tuple[Descriptor, ...]:
    """Parse the descriptors of a SIF. Return none if the file is not a SIF.

    Args:
        head: the first ``DESCRIPTORS_END`` bytes of the file.
        file_size: None if it is unknown; then extents of data are not compared with it.

    Raises:
        SifError: the file begins as a SIF does, and its table of objects is broken.
    """
    if parse_header(head) is None:
        return ()
    _, count, start = _COUNTS.unpack_from(head, _COUNTS_AT)
    end = start + count * _DESCRIPTOR.size
    if count < 0 or start < HEADER_SIZE or end > len(head):
        raise _broken(f"its table of {count} objects cannot begin at {start}", _COUNTS_AT)
    positions = range(start, end, _DESCRIPTOR.size)
    every = (Descriptor(at, *_DESCRIPTOR.unpack_from(head, at)) for at in positions)
    used = tuple(descriptor for descriptor in every if descriptor.is_used)
    for descriptor in used:
        end = descriptor.offset + descriptor.size
        if min(descriptor.extent) < 0 or (file_size is not None and end > file_size):
            reason = (
                f"the {descriptor.size} bytes at {descriptor.offset} of object {descriptor.number}"
            )
            raise _broken(f"{reason} are not in the file", descriptor.position)
    return used


def _broken(reason: str, position: int) -> SifError:
    return SifError(f"this SIF is broken at byte {position}: {reason}")


def build_header(
    sizes: tuple[int, int, int], sif_id: bytes, time: int, machine: str, start: int = DATA_START
) -> bytes:
    """Build the first ``start`` bytes of a SIF.

    Args:
        sizes: of the squashfs, of the definition and of the labels, which follow each other from
            ``start`` on.
        sif_id: 16 bytes that no other file has.
        time: when the file was made, in seconds since 1970.
        machine: the architecture as ``uname -m`` writes it.
        start: at least ``DATA_START``.
    """
    system, definition, labels = sizes
    architecture = _ARCHITECTURES.get(machine, b"00") + b"\0"
    end = start + system
    facts = _PARTITION_FACTS.pack(_SQUASHFS, _PRIMARY, architecture)
    objects = (
        (DEFINITION, end, definition, b"", b""),
        (JSON, end + definition, labels, METADATA.encode(), b""),
        (PARTITION, start, system, b"", facts),
    )
    group, times = _GROUP_MASK + 1, (time, time)
    packed = b"".join(
        _DESCRIPTOR.pack(kind, True, number, group, 0, at, size, size, *times, 0, 0, name, extra)
        for number, (kind, at, size, name, extra) in enumerate(objects, 1)
    )
    counts = (_MOST_DESCRIPTORS - len(objects), _MOST_DESCRIPTORS)
    table = (_DESCRIPTORS_AT, _MOST_DESCRIPTORS * _DESCRIPTOR.size)
    data = (DESCRIPTORS_END, end + definition + labels - DESCRIPTORS_END)
    first = _HEADER.pack(
        _LAUNCH, _MAGIC, b"01\0", architecture, sif_id, *times, *counts, *table, *data
    )
    return (first.ljust(_DESCRIPTORS_AT, b"\0") + packed).ljust(start, b"\0")
