"""SIF files on disk: read their objects, hash them, and normalize their headers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from toolkit.errors import ImageMissingError, MalformedInputError
from toolkit.files import hash_file, open_regular
from toolkit.images.sif import SifError
from toolkit.images.sif import header as sif
from toolkit.units import human_size

_MOST_TEXT = 16 << 20  # bytes; a bill of materials has some hundred thousands


class SifFile(NamedTuple):
    """A SIF that is open."""

    stream: BinaryIO
    status: os.stat_result
    header: sif.Header
    descriptors: tuple[sif.Descriptor, ...]

    def read(self, data_type: int, name: str = "") -> bytes:
        """Read a text that is kept beside the file system. Return no bytes if there is none.

        Args:
            data_type: ``DEFINITION``, ``JSON`` or ``BILL`` of ``sif.header``.
            name: of the object; empty: any.

        Raises:
            SifError: the text is larger than any of its kind.
        """
        for each in self.descriptors:
            if each.data_type == data_type and name in ("", each.label):
                if each.size > _MOST_TEXT:
                    raise SifError(f"it keeps a text of {each.size} bytes beside its file system")
                self.stream.seek(each.offset)
                return self.stream.read(each.size)
        return b""


@contextmanager
def open_sif(path: Path) -> Iterator[SifFile]:
    """Open a SIF that is not cut off.

    Raises:
        ImageMissingError: the file is not a SIF, cannot be read, or is cut off.
        MalformedInputError: it is broken.
    """
    try:
        with open_regular(path) as stream, sif_errors(str(path)):
            status, head = os.fstat(stream.fileno()), stream.read(sif.DESCRIPTORS_END)
            header = sif.parse_header(head)
            if header is None:
                raise ImageMissingError(
                    "this file is not an image: it does not begin as a SIF does",
                    place=str(path),
                    next_step="toolkit image list",
                )
            if status.st_size < header.end:
                sizes = f"{human_size(status.st_size)} of {human_size(header.end)}"
                reason = f"the image is cut off: {sizes} are there"
                raise ImageMissingError(reason, place=str(path))
            descriptors = sif.parse_descriptors(head, status.st_size)
            yield SifFile(stream, status, header, descriptors)
    except OSError as error:
        reason = f"the image cannot be read: {error.strerror}"
        raise ImageMissingError(reason, place=str(path)) from None


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


def read_descriptors(path: Path) -> tuple[sif.Descriptor, ...]:
    """Read the descriptors of the objects of a SIF; errors as of ``open_sif``."""
    with open_sif(path) as image:
        return image.descriptors


def read_object(path: Path, data_type: int, name: str = "") -> bytes:
    """Read a text as ``SifFile.read``; errors as of ``open_sif``."""
    with open_sif(path) as image:
        return image.read(data_type, name)


def partition_digest(path: Path) -> str:
    """Return the SHA-256 of the file system of an image; errors as of ``open_sif``.

    If the image has several file systems on top of each other, return the hash of their hashes.
    """
    from toolkit.images.recipe.digests import hash_texts

    partitions = [each for each in read_descriptors(path) if each.data_type == sif.PARTITION]
    digests = [hash_file(path, extent=partition.extent) for partition in partitions]
    return digests[0] if len(digests) == 1 else hash_texts("\n".join(digests))


def normalize(path: Path, time: int) -> str:
    """Set the id and the times of an unsigned SIF, so that equal contents are equal files.

    Apptainer gives each SIF a random id and the current time. Neither says anything that a manifest
    does not. Both are replaced before a signature fixes the header.

    Args:
        path: the SIF.
        time: in seconds since 1970.

    Returns:
        The new id of the SIF.
    """
    import hashlib  # with OpenSSL; most commands hash nothing

    descriptors = read_descriptors(path)
    assert not any(descriptor.data_type == sif.SIGNATURE for descriptor in descriptors)
    digests = "\n".join(hash_file(path, extent=descriptor.extent) for descriptor in descriptors)
    sif_id = hashlib.sha256(digests.encode()).digest()[:16]
    places = (each.position + sif.DESCRIPTOR_TIMES_AT for each in descriptors)
    times = struct.pack("<qq", time, time)
    with path.open("r+b") as stream:
        os.pwrite(stream.fileno(), sif_id, sif.ID_AT)
        for position in (sif.TIMES_AT, *places):
            os.pwrite(stream.fileno(), times, position)
    return sif_id.hex()
