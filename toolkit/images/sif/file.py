"""SIF files on disk: hashes of what is in one, and setting its head to what depends on nothing but that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import ImageMissingError, MalformedInputError
from toolkit.files import open_regular
from toolkit.images.sif import header as sif
from toolkit.images.sif.objects import PARTITION, SIGNATURE, Object, identity, normalised, objects

_CHUNK = 1 << 20
_MOST_TEXT = 16 << 20  # bytes; a definition has some thousands


def objects_of(path: Path) -> tuple[Object, ...]:
    """The objects of a SIF.

    Raises:
        ImageMissingError: it is none, or cannot be read.
        MalformedInputError: it is a broken one.
    """
    try:
        with open_regular(path) as stream, placed(str(path)):
            size = os.fstat(stream.fileno()).st_size
            found = objects(stream.read(sif.HEAD_SIZE), size)
    except OSError as error:
        reason = f"the image cannot be read: {error.strerror}"
        raise ImageMissingError(reason, place=str(path)) from None
    if not found:
        raise ImageMissingError(
            "this file is no image: it does not begin as a SIF does",
            place=str(path),
            next_step="toolkit image list",
        )
    return found


@contextmanager
def placed(path: str, before: str = "") -> Iterator[None]:
    """Name the file in errors of what is read from it.

    Args:
        path: of the file.
        before: first words of the message.
    """
    try:
        yield
    except MalformedInputError as error:
        raise MalformedInputError(f"{before}{error.cause}", place=path) from None


def text_of(path: Path, which: Callable[[bytes, int], sif.Place | None]) -> bytes:
    """Return a text that a SIF keeps beside its file system; empty where it does not.

    Args:
        path: of the SIF.
        which: ``sif.metadata`` or ``sif.definition``.

    Raises:
        MalformedInputError: the SIF is broken, or the text is larger than any.
    """
    with open_regular(path) as stream, placed(str(path)):
        place = which(stream.read(sif.HEAD_SIZE), os.fstat(stream.fileno()).st_size)
        if place is None:
            return b""
        if place[1] > _MOST_TEXT:
            raise MalformedInputError(f"it keeps a text of {place[1]} bytes beside its file system")
        stream.seek(place[0])
        return stream.read(place[1])


def partition_digest(path: Path) -> str:
    """SHA-256 of the file system of an image; of one that has several on top of each other, of their hashes.

    Raises:
        ImageMissingError: it is no SIF, or cannot be read.
    """
    digests = [_digest(path, one) for one in objects_of(path) if one.kind == PARTITION]
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    )


def normalise(path: Path, time: int) -> str:
    """Make equal contents equal files: set the id and the times of a SIF that nobody has signed yet; its new id.

    Args:
        time: in seconds since 1970.
    """
    found = objects_of(path)
    assert not any(one.kind == SIGNATURE for one in found)
    sif_id = identity(_digest(path, one) for one in found)
    handle = os.open(path, os.O_RDWR)
    try:
        for at, data in normalised(found, sif_id, time):
            os.pwrite(handle, data, at)
    finally:
        os.close(handle)
    return sif_id.hex()


def is_signed(path: Path) -> bool:
    """Whether there is any signature in a SIF; whose, and whether it is right, is another question."""
    return any(one.kind == SIGNATURE for one in objects_of(path))


def _digest(path: Path, one: Object) -> str:
    digest, left = hashlib.sha256(), one.size
    with path.open("rb") as stream:
        stream.seek(one.offset)
        while left and (chunk := stream.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
