"""A packed workshop: one tar file that is equal for equal contents, and is read strictly.

It holds regular files only, the first of which lists all others with their checksums. Only the
listed files are unpacked, in their order: no path outside, no link, no device, no second file of
one name, and no header that announces another one.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from toolkit.errors import MalformedInputError
from toolkit.files import hash_file, open_regular, sync, temporary_beside, written_whole
from toolkit.model.base import BadDataError, from_json
from toolkit.workshops.model import (
    CONTENTS,
    FORMAT,
    SIGNATURE,
    Contents,
    PackedFile,
    check,
)

_BLOCK, _CHUNK = 512, 1 << 20
_MOST_CONTENTS = 4 << 20
_MOST_SIGNATURE = 1 << 16
_LONGEST = 100  # bytes of a path in a header without a second one

Source = Path | bytes
Verify = Callable[[bytes, bytes], None]  # the contents and their signature; raises if it is wrong


def describe(source: Source) -> PackedFile:
    """Return size and SHA-256 of a file that is going to be packed."""
    if isinstance(source, bytes):
        return PackedFile(size=len(source), sha256=hashlib.sha256(source).hexdigest())
    return PackedFile(size=source.stat().st_size, sha256=hash_file(source))


def write(target: Path, sources: Mapping[str, Source], described: Mapping[str, PackedFile]) -> None:
    """Write an archive completely or not at all.

    Args:
        target: the file; one that exists is replaced.
        sources: path in the archive -> content, in their order.
        described: path -> what its list says of the content, for all but the list itself.

    Raises:
        MalformedInputError: a path is too long for the format, or a file has changed since it was
            described.
    """
    with written_whole(target) as made:
        with made.open("wb") as stream:
            for name, source in sources.items():
                _append(stream, name, source, described.get(name) or describe(source))
            stream.write(bytes(2 * _BLOCK))
        made.chmod(0o644)
        sync(made)


def _append(stream: BinaryIO, name: str, source: Source, expected: PackedFile) -> None:
    if len(os.fsencode(name)) > _LONGEST:
        raise MalformedInputError(
            f"the path of a file in a workshop has at most {_LONGEST} bytes",
            place=name,
            next_step="give the file or the folders above it shorter names, and pack again",
        )
    header = tarfile.TarInfo(name)
    header.size = expected.size
    stream.write(header.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as content:
        if not _copy(content, stream, expected) or content.read(1):
            raise MalformedInputError(
                f"{name} has changed while it was packed",
                place=name,
                next_step="pack again once nothing writes to it",
            )
    stream.write(bytes(-header.size % _BLOCK))


def _copy(source: BinaryIO, target: BinaryIO, expected: PackedFile) -> bool:
    """Copy the bytes of a file; return whether they are the expected ones."""
    digest, left = hashlib.sha256(), expected.size
    while left and (chunk := source.read(min(_CHUNK, left))):
        digest.update(chunk)
        target.write(chunk)
        left -= len(chunk)
    return not left and digest.hexdigest() == expected.sha256


@contextmanager
def copy_of_exercise(contents: Contents, source: Path, name: str, target: Path) -> Iterator[Path]:
    """Copy an exercise of an unpacked workshop to where it can be renamed to ``target``.

    The source can be another user's, who can change it at any time. So only what is listed is
    copied: an added module would be run, and an added link leads to any file of this user.

    Raises:
        MalformedInputError: a file was changed.
        OSError: a file cannot be read, or is not a regular one.
    """
    prefix = f"exercises/{name}/"
    with temporary_beside(target) as scratch:
        made = scratch / "copy"
        made.mkdir()
        for path in (each for each in contents.files if each.startswith(prefix)):
            own = made / path.removeprefix(prefix)
            own.parent.mkdir(parents=True, exist_ok=True)
            with open_regular(source / path) as stream, own.open("xb") as output:
                if not _copy(stream, output, contents.files[path]) or stream.read(1):
                    raise malformed(f"{path} was changed", source)
        _set_modes(made)
        yield made


def _set_modes(directory: Path) -> None:
    """Let others read what is in a directory, whatever the umask is."""
    for entry in (directory, *directory.rglob("*")):
        entry.chmod(0o755 if entry.is_dir() else 0o644)


def read_contents(path: Path, verify: Verify | None = None) -> Contents:
    """Return the contents of a packed workshop.

    Raises:
        MalformedInputError: it is not a packed workshop.
        SignatureError: ``verify`` raised it.
        OSError: it cannot be read.
    """
    with open_regular(path) as stream:
        return _contents(stream, path, verify)[0]


def unpack(path: Path, target: Path, verify: Verify | None = None) -> Contents:
    """Unpack a workshop into a directory that does not exist yet, completely or not at all.

    Raises:
        MalformedInputError: a file is missing, changed, or not listed.
        OSError: the disk is full, for example.
        SignatureError: ``verify`` raised it.
    """
    with open_regular(path) as stream, written_whole(target) as made:
        contents, head = _contents(stream, path, verify)
        made.mkdir(mode=0o755)
        for name, data in head.items():
            (made / name).write_bytes(data)
        for name, expected in contents.files.items():
            if _header(stream, path) != (name, expected.size):
                raise malformed(f"another file comes where its list has {name}", path)
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            with (made / name).open("xb") as output:
                is_equal = _copy(stream, output, expected)
            if not is_equal:
                raise malformed(f"{name} is cut off, or not the file that was packed", path)
            _skip_padding(stream, expected.size, path)
        if stream.read(3 * _BLOCK) != bytes(2 * _BLOCK):
            raise malformed("it does not end after its last file", path)
        _set_modes(made)
    return contents


def read_signature(path: Path) -> bytes:
    """Return the signature beside an unpacked list of files; empty if it is too large to be one.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as stream:
        data = stream.read(_MOST_SIGNATURE + 1)
    return data if len(data) <= _MOST_SIGNATURE else b""


def parse_contents(data: bytes, place: Path) -> Contents:
    """Return the contents that the first file of a packed workshop lists.

    Raises:
        MalformedInputError: they are not valid, or of a newer format.
    """
    try:
        contents = from_json(data, Contents)
        check(contents.workshop)
    except BadDataError as error:
        raise malformed(f"its list of files is not valid: {error}", place) from None
    if contents.format != FORMAT:
        raise malformed(f"its format is {contents.format}; this toolkit reads {FORMAT}", place)
    parents = {str(above) for name in contents.files for above in Path(name).parents}
    for name in contents.files:
        is_taken = name in (CONTENTS, SIGNATURE) or name in parents
        if is_taken or not name.isprintable() or "\\" in name:
            raise malformed(f"its list of files has {name!r}", place)
    return contents


def _contents(
    stream: BinaryIO, path: Path, verify: Verify | None
) -> tuple[Contents, dict[str, bytes]]:
    """Read the first file, and the signature if one follows; return both by their names."""
    name, size = _header(stream, path)
    if name != CONTENTS or size > _MOST_CONTENTS:
        raise malformed(f"its first file is not {CONTENTS}", path)
    data = stream.read(size)
    _skip_padding(stream, size, path)
    contents, head, at = parse_contents(data, path), {CONTENTS: data}, stream.tell()
    name, size = _header(stream, path)
    if name == SIGNATURE and size <= _MOST_SIGNATURE:
        head[SIGNATURE] = stream.read(size)
        _skip_padding(stream, size, path)
    else:
        stream.seek(at)
    if verify is not None:
        verify(data, head.get(SIGNATURE, b""))
    return contents, head


def _header(stream: BinaryIO, path: Path) -> tuple[str, int]:
    try:
        header = tarfile.TarInfo.frombuf(stream.read(_BLOCK), "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise malformed(f"it is cut off or damaged ({error})", path) from None
    if header.type != tarfile.REGTYPE or header.size < 0:
        raise malformed(f"{header.name!r} in it is not a regular file", path)
    return header.name, header.size


def _skip_padding(stream: BinaryIO, size: int, path: Path) -> None:
    if stream.read(-size % _BLOCK) != bytes(-size % _BLOCK):
        raise malformed("it is cut off or damaged", path)


def malformed(reason: str, path: Path) -> MalformedInputError:
    """Return the error of a workshop that is not as it was packed."""
    return MalformedInputError(
        f"{path.name} is not a complete packed workshop: {reason}",
        place=str(path),
        next_step="get the file again, and compare its checksum with the instructor's",
    )
