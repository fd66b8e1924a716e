"""SIF files on disk: read their objects, hash them, and normalize their headers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import ImageMissingError, MalformedInputError
from toolkit.files import hash_file, open_regular
from toolkit.images.sif import SifError
from toolkit.images.sif import header as sif

_MOST_TEXT = 16 << 20  # bytes; a definition has some thousands


def read_descriptors(path: Path) -> tuple[sif.Descriptor, ...]:
    """Read the descriptors of the objects of a SIF.

    Raises:
        ImageMissingError: the file is not a SIF, or cannot be read.
        MalformedInputError: the SIF is broken.
    """
    try:
        with open_regular(path) as stream, sif_errors(str(path)):
            size = os.fstat(stream.fileno()).st_size
            descriptors = sif.parse_descriptors(stream.read(sif.DESCRIPTORS_END), size)
    except OSError as error:
        reason = f"the image cannot be read: {error.strerror}"
        raise ImageMissingError(reason, place=str(path)) from None
    if not descriptors:
        raise not_a_sif(path)
    return descriptors


def not_a_sif(path: Path) -> ImageMissingError:
    """Return the error for a file that is not a SIF."""
    reason = "this file is not an image: it does not begin as a SIF does"
    return ImageMissingError(reason, place=str(path), next_step="toolkit image list")


@contextmanager
def sif_errors(path: str, prefix: str = "") -> Iterator[None]:
    """Turn errors of the parsers into a ``MalformedInputError`` that names the file.

    Args:
        path: the file.
        prefix: the first words of the message.
    """
    try:
        yield
    except SifError as error:
        raise MalformedInputError(f"{prefix}{error}", place=path) from None


def read_text_object(path: Path, data_type: int) -> bytes:
    """Read a text that a SIF keeps beside its file system. Return no bytes if it keeps none.

    Args:
        path: the SIF.
        data_type: ``LABELS`` or ``DEFINITION`` of ``sif.header``.

    Raises:
        MalformedInputError: the SIF is broken, or the text is larger than any definition.
    """
    with open_regular(path) as stream, sif_errors(str(path)):
        size = os.fstat(stream.fileno()).st_size
        extent = sif.find_text(stream.read(sif.DESCRIPTORS_END), data_type, size)
        if extent is None:
            return b""
        if extent[1] > _MOST_TEXT:
            raise SifError(f"it keeps a text of {extent[1]} bytes beside its file system")
        stream.seek(extent[0])
        return stream.read(extent[1])


def partition_digest(path: Path) -> str:
    """Return the SHA-256 of the file system of an image.

    If the image has several file systems on top of each other, return the hash of their hashes.

    Raises:
        ImageMissingError: the file is not a SIF, or cannot be read.
    """
    partitions = (
        descriptor for descriptor in read_descriptors(path) if descriptor.data_type == sif.PARTITION
    )
    digests = [hash_file(path, extent=partition.extent) for partition in partitions]
    from toolkit.images.recipe.digests import hash_texts

    return digests[0] if len(digests) == 1 else hash_texts("\n".join(digests))


def normalize(path: Path, time: int) -> str:
    """Set the id and the times of an unsigned SIF, so that equal contents are equal files.

    Args:
        path: the SIF.
        time: in seconds since 1970.

    Returns:
        The new id of the SIF.
    """
    descriptors = read_descriptors(path)
    assert not any(descriptor.data_type == sif.SIGNATURE for descriptor in descriptors)
    sif_id = sif.derive_id(hash_file(path, extent=descriptor.extent) for descriptor in descriptors)
    with path.open("r+b") as stream:
        for position, data in sif.plan_normalization(descriptors, sif_id, time):
            os.pwrite(stream.fileno(), data, position)
    return sif_id.hex()


def is_signed(path: Path) -> bool:
    """Return whether a SIF has any signature.

    The signer is not checked, nor whether the signature is valid.
    """
    return any(descriptor.data_type == sif.SIGNATURE for descriptor in read_descriptors(path))
