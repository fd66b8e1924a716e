"""SIF files on disk: hashes of what is in one, and setting its head to what depends on nothing but that."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from toolkit.errors import ImageMissingError
from toolkit.images import sif
from toolkit.images.sif_objects import PARTITION, SIGNATURE, Object, identity, normalised, objects

_CHUNK = 1 << 20


def objects_of(path: Path) -> tuple[Object, ...]:
    """The objects of a SIF.

    Raises:
        ImageMissingError: it is none, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            found = objects(stream.read(sif.HEAD_SIZE))
    except OSError as error:
        raise ImageMissingError(f"the image cannot be read: {error.strerror}", place=str(path)) from None
    if not found:
        raise ImageMissingError("this file is no image: it does not begin as a SIF does", place=str(path), next_step="toolkit image list")
    return found


def partition_digest(path: Path) -> str:
    """SHA-256 of the file system of an image; of one that has several on top of each other, of their hashes.

    Raises:
        ImageMissingError: it is no SIF, or cannot be read.
    """
    digests = [_digest(path, one) for one in objects_of(path) if one.kind == PARTITION]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


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
