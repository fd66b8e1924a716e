"""Fit a program that was built for a newer glibc to an older one. Pure.

Only programs whose newer symbols are of the strtol family can be fitted.

Since glibc 2.38 a compiler writes ``__isoc23_strtol@GLIBC_2.38`` where it wrote
``strtol@GLIBC_2.2.5`` before. The only difference is that with base 0 or 2 the new one also reads
C23's ``0b101``. So a reference to one can be turned into a reference to the other, in place:
the name of the old symbol is the tail of the new name, and the old version is in the table
already. Everything else that is too new is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

PREFIX = b"__isoc23_"
TWINS = frozenset({b"strtol", b"strtoul", b"strtoll", b"strtoull"})
BASE_VERSION = b"GLIBC_2.2.5"  # of every symbol that x86-64's first glibc had
LIBC = b"libc.so.6"

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_X86_64 = 62
_DYNSYM, _VERSYM, _VERNEED = 11, 0x6FFFFFFF, 0x6FFFFFFE
_NUMBERED = re.compile(rb"GLIBC_(\d+)\.(\d+)(?:\.\d+)?\Z")
_RELR = b"GLIBC_ABI_DT_RELR"  # not a symbol's version, but a promise that glibc 2.36 and later make


class ElfRefusedError(ValueError):
    """This file cannot be fitted to that glibc; the message says why."""


class _Section(NamedTuple):
    """A section; ``linked`` is the offset of the section with its names."""

    offset: int
    size: int
    linked: int


class _NeededVersion(NamedTuple):
    """A version that the file wants from a library, and where that is written."""

    library: bytes
    version: bytes
    number: int
    at: int


def is_elf(data: bytes) -> bool:
    """Return whether a file is an ELF file."""
    return data[:4] == _MAGIC[:4]


def retarget(data: bytes, newest: tuple[int, int]) -> tuple[bytes, tuple[str, ...]]:
    """Fit the references of a program to a version of glibc; return it and the changed symbols.

    A file that needs no newer version is returned unchanged, without symbols.

    Raises:
        ElfRefusedError: it is not a 64-bit x86 ELF file, or needs more of a newer glibc than the
            strtol family.
    """
    if data[:6] != _MAGIC or struct.unpack_from("<H", data, 18)[0] != _X86_64:
        raise ElfRefusedError("not a 64-bit x86 ELF file")
    sections = _sections(data)
    if _VERNEED not in sections or _DYNSYM not in sections:
        return data, ()
    strings = sections[_DYNSYM].linked
    wanted = _needed_versions(data, sections[_VERNEED], strings)
    too_new = {want.number: want for want in wanted if _newer(want.version, newest)}
    if not too_new:
        return data, ()
    base = next(
        (want for want in wanted if want.library == LIBC and want.version == BASE_VERSION), None
    )
    if base is None or any(want.library != LIBC for want in too_new.values()):
        raise ElfRefusedError(f"wants {_listed(want.version for want in too_new.values())}")
    patched = bytearray(data)
    names = _retarget_symbols(patched, sections, strings, frozenset(too_new), base.number)
    for want in too_new.values():
        _rename_version(patched, want.at, base.at)
    return bytes(patched), names


def _sections(data: bytes) -> dict[int, _Section]:
    """Return the sections by kind; the kinds that are used occur once."""
    start, entry, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    rows = [
        struct.unpack_from("<IIQQQQIIQQ", data, start + number * entry) for number in range(count)
    ]
    return {
        row[1]: _Section(row[4], row[5], rows[row[6]][4] if row[6] < count else 0) for row in rows
    }


def _text(data: bytes | bytearray, at: int) -> bytes:
    return bytes(data[at : data.index(b"\0", at)])


def _needed_versions(data: bytes, section: _Section, strings: int) -> list[_NeededVersion]:
    """Return every (library, version) of the table of needed versions, two nested linked lists."""
    versions, at = [], section.offset
    while True:
        _, count, library, first, following = struct.unpack_from("<HHIII", data, at)
        inner = at + first
        for _ in range(count):
            _, _, index, name, step = struct.unpack_from("<IHHII", data, inner)
            versions.append(
                _NeededVersion(
                    _text(data, strings + library), _text(data, strings + name), index, inner
                )
            )
            inner += step
        if not following:
            return versions
        at += following


def _newer(version: bytes, newest: tuple[int, int]) -> bool:
    numbers = _NUMBERED.match(version)
    if numbers:
        return (int(numbers[1]), int(numbers[2])) > newest
    if version.startswith(b"GLIBC_ABI_"):
        return not (version == _RELR and newest >= (2, 36))
    return False


def _retarget_symbols(
    patched: bytearray,
    sections: dict[int, _Section],
    strings: int,
    too_new: frozenset[int],
    base: int,
) -> tuple[str, ...]:
    symbols, versions = sections[_DYNSYM], sections[_VERSYM]
    changed, refused = [], []
    for number in range(symbols.size // 24):
        at, version_at = symbols.offset + 24 * number, versions.offset + 2 * number
        (version,) = struct.unpack_from("<H", patched, version_at)
        if version & 0x7FFF not in too_new:
            continue
        name_offset, _, _, defined_in = struct.unpack_from("<IBBH", patched, at)
        name = _text(patched, strings + name_offset)
        if defined_in or not name.startswith(PREFIX) or name[len(PREFIX) :] not in TWINS:
            refused.append(name)
            continue
        struct.pack_into("<I", patched, at, name_offset + len(PREFIX))
        struct.pack_into("<H", patched, version_at, base)
        changed.append(name.decode())
    if refused:
        raise ElfRefusedError(f"needs {_listed(refused)} of a newer glibc")
    return tuple(sorted(changed))


def _rename_version(patched: bytearray, at: int, base_at: int) -> None:
    """Make an entry need the base version: the loader checks every entry, used or not."""
    digest, flags, _, name, _ = struct.unpack_from("<IHHII", patched, base_at)
    struct.pack_into("<IH", patched, at, digest, flags)
    struct.pack_into("<I", patched, at + 8, name)


def _listed(names: Iterable[bytes]) -> str:
    return ", ".join(sorted({name.decode(errors="replace") for name in names}))
