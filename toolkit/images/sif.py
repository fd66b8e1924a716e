"""The head of a SIF file: what tells one image from another and a whole file from a part of one, where its file system is, and a new one.

The layout is ``sif.header`` of github.com/sylabs/sif: fixed offsets, little-endian. Pure: works on bytes that others have read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from toolkit.model.base import Model

HEADER_SIZE = 128  # bytes to read from the beginning of the file
_MAGIC = b"SIF_MAGIC"
_MAGIC_AT, _ID_AT, _COUNT_AT, _DATA_AT = 32, 48, 88, 112
_HEAD = struct.Struct("<32s10s3s3s16s8q")
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_DESCRIPTORS_AT, _MOST = 4096, 48
_DEFINITION, _PARTITION, _JSON = 0x4001, 0x4004, 0x4006
_GROUP = 0xF0000001
_PRIMARY = struct.Struct("<ii3s")  # of a partition: squashfs, the system that starts, architecture
FIRST = 32768  # where an image of ours has its file system: behind the head and all descriptors
HEAD_SIZE = _DESCRIPTORS_AT + _MOST * _DESCRIPTOR.size  # bytes that ``partition`` needs
_ARCHITECTURES = {"x86_64": b"02", "aarch64": b"04", "ppc64le": b"06", "s390x": b"09"}


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


def architecture(head: bytes) -> str:
    """The architecture that a SIF is for, as ``uname -m`` says it; empty where it is no SIF or of one that is not known."""
    if parse(head) is None:
        return ""
    code = _HEAD.unpack_from(head)[3].rstrip(b"\0")
    return next((name for name, known in _ARCHITECTURES.items() if known == code), "")


def partition(head: bytes) -> tuple[int, int] | None:
    """Where the squashfs that a SIF starts from lies, and how long it is, by the first ``HEAD_SIZE`` bytes; None where there is none."""
    found = (place for kind, place, extra in _objects(head) if kind == _PARTITION and _PRIMARY.unpack_from(extra)[:2] == (1, 2))
    return next(found, None)


def metadata(head: bytes) -> tuple[int, int] | None:
    """Where the labels and the like are that ``inspect`` shows, and how long they are; None where they are not kept apart."""
    return next((place for kind, place, _ in _objects(head) if kind == _JSON), None)


def definition(head: bytes) -> tuple[int, int] | None:
    """Where the definition is that it was built from, and how long; None where it is not kept apart."""
    return next((place for kind, place, _ in _objects(head) if kind == _DEFINITION), None)


def _objects(head: bytes) -> Iterator[tuple[int, tuple[int, int], bytes]]:
    """Kind, place and further facts of whatever a SIF holds."""
    if parse(head) is None or len(head) < HEAD_SIZE:
        return
    count, at = struct.unpack_from("<qq", head, _COUNT_AT)
    for number in range(min(count, _MOST)):
        kind, used, _, _, _, start, size, *_, extra = _DESCRIPTOR.unpack_from(head, at + number * _DESCRIPTOR.size)
        if used:
            yield kind, (start, size), extra


class Part(Model, frozen=True, kw_only=True):
    """What a new SIF holds beside its file system, which begins at ``FIRST``: position and length of each."""

    system: int
    definition: tuple[int, int]
    metadata: tuple[int, int]


def head(part: Part, sif_id: bytes, time: int, machine: str) -> bytes:
    """The first ``FIRST`` bytes of a SIF.

    Args:
        sif_id: 16 bytes, of no other file.
        time: of its making, in seconds since 1970.
        machine: the architecture as ``uname -m`` says it.
    """
    architecture = _ARCHITECTURES.get(machine, b"00") + b"\0"
    entries = (
        (_DEFINITION, *part.definition, b"", b""),
        (_JSON, *part.metadata, b"inspect-metadata.json", b""),
        (_PARTITION, FIRST, part.system, b"", _PRIMARY.pack(1, 2, architecture)),
    )
    packed = b"".join(
        _DESCRIPTOR.pack(kind, True, number, _GROUP, 0, start, size, size, time, time, 0, 0, name, extra)
        for number, (kind, start, size, name, extra) in enumerate(entries, 1)
    )
    end = max(FIRST + part.system, sum(part.definition), sum(part.metadata))
    places = (_MOST - len(entries), _MOST, _DESCRIPTORS_AT, _MOST * _DESCRIPTOR.size, HEAD_SIZE, end - HEAD_SIZE)
    first = _HEAD.pack(_LAUNCH, _MAGIC, b"01\0", architecture, sif_id, time, time, *places)
    return (first.ljust(_DESCRIPTORS_AT, b"\0") + packed).ljust(FIRST, b"\0")
