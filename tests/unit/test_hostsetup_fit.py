"""Fitting programs to an older glibc: on ELF files made here, byte by byte, and on the real one that runs the tests."""

from __future__ import annotations

import struct

import pytest

from toolkit.errors import NeedsInstallError
from toolkit.hostsetup.fit_apptainer import fit_control, require_safe, retarget

DYNSYM, STRTAB, VERSYM, VERNEED = 11, 3, 0x6FFFFFFF, 0x6FFFFFFE
HASHES = {"GLIBC_2.2.5": 0x09691A75}


def make(
    symbols: list[tuple[str, str]],
    *,
    library: str = "libc.so.6",
    defined: bool = False,
    machine: int = 62,
) -> bytes:
    """A 64-bit ELF file with nothing but these (symbol, version) references and their tables."""
    versions = list(dict.fromkeys(version for _, version in symbols))
    texts = (library, *versions, *(name for name, _ in symbols))
    strings = "\0" + "".join(f"{text}\0" for text in texts)
    at = {text: strings.index(f"\0{text}\0") + 1 for text in texts}
    numbers = {version: place + 2 for place, version in enumerate(versions)}
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", at[name], 0x12, 0, int(defined), 0, 0) for name, _ in symbols
    )
    versym = struct.pack(f"<{len(symbols) + 1}H", 0, *(numbers[version] for _, version in symbols))
    verneed = struct.pack("<HHIII", 1, len(versions), at[library], 16, 0)
    for place, version in enumerate(versions):
        step = 16 if place + 1 < len(versions) else 0
        digest = HASHES.get(version, 1000 + place)
        verneed += struct.pack("<IHHII", digest, 0, numbers[version], at[version], step)
    parts = [(DYNSYM, table, 2), (STRTAB, strings.encode(), 0)]
    return _file([*parts, (VERSYM, versym, 1), (VERNEED, verneed, 2)], machine)


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
PUTS, DLOPEN = ("puts", OLD), ("dlopen", "GLIBC_2.34")
FOUR = [PUTS, ("__isoc23_strtol", NEW), ("__isoc23_strtoul", NEW), DLOPEN]
FITS = [PUTS, ("strtol", OLD), ("strtoul", OLD), DLOPEN]


def references(data: bytes) -> list[tuple[str, str]]:
    """The (symbol, version) references of a file that ``make`` made."""
    (table,) = struct.unpack_from("<Q", data, 40)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * number) for number in range(5)]
    symbols, strings, versym, verneed = (row[4] for row in rows[1:])

    def text(at: int) -> str:
        return data[strings + at : data.index(b"\0", strings + at)].decode()

    _, count, _, at, _ = struct.unpack_from("<HHIII", data, verneed)
    versions = {}
    for place in range(count):
        _, _, number, name, _ = struct.unpack_from("<IHHII", data, verneed + at + 16 * place)
        versions[number] = text(name)
    numbers = struct.unpack_from("<5H", data, versym)[1:]
    names = [text(struct.unpack_from("<I", data, symbols + 24 * each)[0]) for each in range(1, 5)]
    return [(name, versions[number]) for name, number in zip(names, numbers, strict=True)]


def test_references_to_the_strtol_family_are_turned_to_the_old_ones():
    before = make(FOUR)
    after = retarget(before, (2, 36))
    assert references(before) == FOUR
    assert references(after) == FITS
    assert len(after) == len(before)
    assert NEW not in [version for _, version in references(after)]
    assert retarget(after, (2, 36)) == after, "what came out wants nothing new"


TOL, SCANF = ("__isoc23_strtol", NEW), ("__isoc23_sscanf", NEW)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make([("puts", OLD), ("strlcpy", NEW)]), "needs strlcpy of a newer glibc"),
        (make([("puts", OLD), TOL, SCANF]), "needs __isoc23_sscanf of a newer glibc"),
        (make([("puts", OLD), TOL], defined=True), "needs __isoc23_strtol of a newer glibc"),
        (make([("puts", OLD), ("fmod", NEW)], library="libm.so.6"), "wants GLIBC_2.38"),
        (make([TOL]), "wants GLIBC_2.38"),
        (make([("puts", OLD), ("x", "GLIBC_ABI_GNU2_TLS")]), "needs x of a newer glibc"),
        (make([("puts", OLD)], machine=183), "is not a 64-bit x86 ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "is not a 64-bit x86 ELF file"),
    ],
)
def test_everything_else_is_refused(data, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        retarget(data, (2, 36))


@pytest.mark.parametrize("version", ["1.4.10-1", "2.0~rc1-1", "1:1.4.5-1"])
def test_a_fixed_version_is_taken(version):
    require_safe(version, "http://mirror.example.org/debian")


@pytest.mark.parametrize("version", ["1.4.4-2", "1:1.3.0"])
def test_a_vulnerable_version_is_not_taken(version):
    with pytest.raises(NeedsInstallError, match="known to be vulnerable"):
        require_safe(version, "http://mirror.example.org/debian")


def test_the_control_file_gets_a_version_of_its_own_and_the_libc_that_is_there():
    control = "Package: apptainer\nVersion: 1.4.5-2\nDepends: ca-certificates, libc6 (>= 2.38), libseccomp2 (>= 2.5.0)\n"
    assert fit_control(control, "bookworm", "2.36") == (
        "Package: apptainer\nVersion: 1.4.5-2+bookworm1\nDepends: ca-certificates, libc6 (>= 2.36), libseccomp2 (>= 2.5.0)\n"
    )
