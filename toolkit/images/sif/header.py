"""The head of a SIF file: its identity, its objects, and the head of a new one.

The layout is ``sif.header`` of github.com/sylabs/sif: fixed offsets, little-endian. Pure: works on
bytes that others have read. Nothing in a head is believed before it fits into the file that it
heads.
"""

from __future__ import annotations

import struct

from toolkit.errors import MalformedInputError
from toolkit.model.base import Model

HEADER_SIZE = 128  # bytes to read from the beginning of the file
_MAGIC = b"SIF_MAGIC"
_MAGIC_AT, _ID_AT, _COUNTS_AT, _DATA_AT = 32, 48, 80, 112
_HEAD = struct.Struct("<32s10s3s3s16s8q")
_COUNTS = struct.Struct("<qqqq")  # free descriptors, all of them, where they begin, their length
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
# kind, used, id, group, link, offset, size, size with padding, created, modified, user, group,
# name, facts of its kind
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_DESCRIPTORS_AT, _MOST = 4096, 48
_DEFINITION, PARTITION, SIGNATURE, _JSON = 0x4001, 0x4004, 0x4005, 0x4006
_NO_GROUP, _GROUP = 0xF0000000, 0xF0000001
_PRIMARY = struct.Struct("<ii3s")  # of a partition: squashfs, the system that starts, architecture
FIRST = 32768  # where an image of ours has its file system: behind the head and all descriptors
HEAD_SIZE = _DESCRIPTORS_AT + _MOST * _DESCRIPTOR.size  # bytes that ``objects`` needs
_ARCHITECTURES = {"x86_64": b"02", "aarch64": b"04", "ppc64le": b"06", "s390x": b"09"}

Place = tuple[int, int]  # position in the file, and length in bytes


class Header(Model, frozen=True, kw_only=True):
    """What the head of a SIF says.

    Attributes:
        sif_id: the file's own id, 32 hexadecimal digits; a new one with every build.
        end: how many bytes the file has at least when nothing of it is cut off.
    """

    sif_id: str
    end: int


class Object(Model, frozen=True, kw_only=True):
    """One object of a SIF.

    Attributes:
        number: of it in the file, from 1 on.
        kind: ``PARTITION``, ``SIGNATURE`` or another.
        group: of objects that belong together and are signed together; 0: none.
        offset, size: where its data are.
        created: when, in seconds since 1970.
        at: where its descriptor is.
        extra: facts of its kind.
    """

    number: int
    kind: int
    group: int
    offset: int
    size: int
    created: int
    at: int
    extra: bytes = b""

    @property
    def place(self) -> Place:
        """Where its data are, and how long they are."""
        return self.offset, self.size


def parse(head: bytes) -> Header | None:
    """Read the first ``HEADER_SIZE`` bytes of a file; None where it is not a SIF.

    Raises:
        MalformedInputError: it begins as a SIF does, and says what cannot be.
    """
    if len(head) < HEADER_SIZE or not head.startswith(_MAGIC, _MAGIC_AT):
        return None
    start, size = struct.unpack_from("<qq", head, _DATA_AT)
    if start < 0 or size < 0:
        raise _broken(f"its data begin at {start} and are {size} bytes long", _DATA_AT)
    return Header(sif_id=head[_ID_AT : _ID_AT + 16].hex(), end=start + size)


def architecture(head: bytes) -> str:
    """Return the architecture of a SIF, as ``uname -m`` writes it; empty where it is unknown."""
    if parse(head) is None:
        return ""
    code = _HEAD.unpack_from(head)[3].rstrip(b"\0")
    return next((name for name, known in _ARCHITECTURES.items() if known == code), "")


def objects(head: bytes, size: int | None = None) -> tuple[Object, ...]:
    """Read the objects of a SIF; none where it is not one.

    Args:
        head: the first ``HEAD_SIZE`` bytes of the file.
        size: of the file, in bytes; None: unknown, so places of data are not compared with it.

    Raises:
        MalformedInputError: it begins as a SIF does, and its table of objects is broken.
    """
    if parse(head) is None:
        return ()
    _, count, begin, _ = _COUNTS.unpack_from(head, _COUNTS_AT)
    if count < 0 or begin < HEADER_SIZE or begin + count * _DESCRIPTOR.size > len(head):
        raise _broken(f"its table of {count} objects cannot begin at {begin}", _COUNTS_AT)
    places = range(begin, begin + count * _DESCRIPTOR.size, _DESCRIPTOR.size)
    return tuple(_object(head, at, size) for at in places if head[at + 4])


def _object(head: bytes, at: int, whole: int | None) -> Object:
    kind, _, number, group, _, offset, size, _, created, *_, extra = _DESCRIPTOR.unpack_from(
        head, at
    )
    if offset < 0 or size < 0 or (whole is not None and offset + size > whole):
        raise _broken(f"the {size} bytes at {offset} of object {number} are not in the file", at)
    owner = group - _NO_GROUP if group > _NO_GROUP else 0
    return Object(
        number=number,
        kind=kind,
        group=owner,
        offset=offset,
        size=size,
        created=created,
        at=at,
        extra=extra[: _PRIMARY.size],
    )


def _broken(how: str, at: int) -> MalformedInputError:
    return MalformedInputError(f"this SIF is broken at byte {at}: {how}")


def partition(head: bytes, size: int | None = None) -> Place | None:
    """Return where the squashfs is that a SIF starts from; None where there is none.

    Arguments and errors are those of ``objects``.
    """
    found = objects(head, size)
    return next((one.place for one in found if one.kind == PARTITION and _is_primary(one)), None)


def _is_primary(one: Object) -> bool:
    return _PRIMARY.unpack_from(one.extra)[:2] == (1, 2)


def metadata(head: bytes, size: int | None = None) -> Place | None:
    """Return where the labels are that ``inspect`` shows; None where they are not kept apart."""
    return next((one.place for one in objects(head, size) if one.kind == _JSON), None)


def definition(head: bytes, size: int | None = None) -> Place | None:
    """Return where the definition is that it was built from; None where it is not kept apart."""
    return next((one.place for one in objects(head, size) if one.kind == _DEFINITION), None)


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
        (PARTITION, FIRST, part.system, b"", _PRIMARY.pack(1, 2, architecture)),
    )
    packed = b"".join(
        _DESCRIPTOR.pack(
            kind, True, number, _GROUP, 0, start, size, size, time, time, 0, 0, name, extra
        )
        for number, (kind, start, size, name, extra) in enumerate(entries, 1)
    )
    end = max(FIRST + part.system, sum(part.definition), sum(part.metadata))
    places = (
        _MOST - len(entries),
        _MOST,
        _DESCRIPTORS_AT,
        _MOST * _DESCRIPTOR.size,
        HEAD_SIZE,
        end - HEAD_SIZE,
    )
    first = _HEAD.pack(_LAUNCH, _MAGIC, b"01\0", architecture, sif_id, time, time, *places)
    return (first.ljust(_DESCRIPTORS_AT, b"\0") + packed).ljust(FIRST, b"\0")
