"""Fitting programs to an older glibc: on ELF files made here, byte by byte, and on the real one that runs the tests."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from toolkit.hostsetup import elf

DYNSYM, STRTAB, VERSYM, VERNEED = 11, 3, 0x6FFFFFFF, 0x6FFFFFFE
HASHES = {"GLIBC_2.2.5": 0x09691A75}


class Strings:
    """A string table that grows."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def make(
    symbols: list[tuple[str, str]],
    *,
    library: str = "libc.so.6",
    defined: bool = False,
    machine: int = 62,
) -> bytes:
    """A 64-bit ELF file with nothing but these (symbol, version) references and their tables."""
    strings = Strings()
    versions = list(dict.fromkeys(version for _, version in symbols))
    numbers = {version: place + 2 for place, version in enumerate(versions)}
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, int(defined), 0, 0)
        for name, _ in symbols
    )
    versym = struct.pack(f"<{len(symbols) + 1}H", 0, *(numbers[version] for _, version in symbols))
    verneed = struct.pack("<HHIII", 1, len(versions), strings.add(library), 16, 0)
    for place, version in enumerate(versions):
        step = 16 if place + 1 < len(versions) else 0
        verneed += struct.pack(
            "<IHHII",
            HASHES.get(version, 1000 + place),
            0,
            numbers[version],
            strings.add(version),
            step,
        )
    return _file(
        [(DYNSYM, table, 2), (STRTAB, strings.data, 0), (VERSYM, versym, 1), (VERNEED, verneed, 2)],
        machine,
    )


def _file(sections: list[tuple[int, bytes, int]], machine: int) -> bytes:
    body, rows = b"", [bytes(64)]
    for kind, data, linked in sections:
        rows.append(
            struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, 64 + len(body), len(data), linked, 0, 1, 0)
        )
        body += data
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(rows), 0
    )
    return header + body + b"".join(rows)


OLD, NEW = "GLIBC_2.2.5", "GLIBC_2.38"


def test_references_to_the_strtol_family_are_turned_to_the_old_ones() -> None:
    before = make(
        [
            ("puts", OLD),
            ("__isoc23_strtol", NEW),
            ("__isoc23_strtoul", NEW),
            ("dlopen", "GLIBC_2.34"),
        ]
    )
    after, names = elf.retarget(before, (2, 36))
    assert names == ("__isoc23_strtol", "__isoc23_strtoul")
    assert len(after) == len(before)
    assert (
        sum(one != other for one, other in zip(before, after, strict=True)) < 40
    )  # in place, a few words
    assert elf.retarget(after, (2, 36)) == (after, ())  # what came out wants nothing new
    sections = elf._sections(after)
    wanted = elf._needed_versions(after, sections[VERNEED], sections[DYNSYM].linked)
    assert sorted(want.version for want in wanted) == [OLD.encode(), OLD.encode(), b"GLIBC_2.34"]
    names_now = [
        elf._text(
            after,
            sections[DYNSYM].linked
            + struct.unpack_from("<I", after, sections[DYNSYM].offset + 24 * number)[0],
        )
        for number in range(1, 5)
    ]
    assert names_now == [b"puts", b"strtol", b"strtoul", b"dlopen"]
    versions_now = struct.unpack_from("<5H", after, sections[VERSYM].offset)
    assert versions_now == (0, 2, 2, 2, 4)


@pytest.mark.parametrize("newest", [(2, 38), (2, 41), (3, 0)])
def test_a_glibc_that_is_new_enough_needs_no_change(newest: tuple[int, int]) -> None:
    data = make([("puts", OLD), ("__isoc23_strtol", NEW)])
    assert elf.retarget(data, newest) == (data, ())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make([("puts", OLD), ("strlcpy", NEW)]), "needs strlcpy of a newer glibc"),
        (
            make([("puts", OLD), ("__isoc23_strtol", NEW), ("__isoc23_sscanf", NEW)]),
            "needs __isoc23_sscanf of a newer glibc",
        ),
        (
            make([("puts", OLD), ("__isoc23_strtol", NEW)], defined=True),
            "needs __isoc23_strtol of a newer glibc",
        ),
        (make([("puts", OLD), ("fmod", NEW)], library="libm.so.6"), "wants GLIBC_2.38"),
        (make([("__isoc23_strtol", NEW)]), "wants GLIBC_2.38"),
        (make([("puts", OLD), ("x", "GLIBC_ABI_GNU2_TLS")]), "needs x of a newer glibc"),
        (make([("puts", OLD)], machine=183), "not a 64-bit x86 ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "not a 64-bit x86 ELF file"),
        (b"#!/bin/sh\n" + bytes(60), "not a 64-bit x86 ELF file"),
    ],
)
def test_everything_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(elf.ElfRefusedError, match=f"^{reason}$"):
        elf.retarget(data, (2, 36))


def test_packed_relocations_are_known_since_glibc_2_36() -> None:
    data = make([("puts", OLD), ("x", "GLIBC_ABI_DT_RELR")])
    assert elf.retarget(data, (2, 36)) == (data, ())
    with pytest.raises(elf.ElfRefusedError):
        elf.retarget(data, (2, 31))


def test_the_program_that_runs_this_test_fits_this_machine() -> None:
    data = Path(sys.executable).resolve().read_bytes()
    assert elf.is_elf(data)
    assert elf.retarget(data, (99, 0)) == (data, ())
