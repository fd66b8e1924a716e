"""Fit the Apptainer of Debian's rolling suite to a Debian that has no package of it.

The package comes from the mirror that this machine uses, and is trusted because of the archive's
signature, as every package is. A mirror may be some weeks behind, and an attacker in its place
could replay an old, signed state with an Apptainer that is known to be vulnerable: so apt refuses
one that is older than ``MOST_DAYS``, and we a version that is older than ``MINIMUM``.

Since glibc 2.38 a compiler writes ``__isoc23_strtol@GLIBC_2.38`` where it wrote
``strtol@GLIBC_2.2.5`` before. The only difference is that with base 0 or 2 the new one also reads
C23's ``0b101``. So on Debian 12 a reference to one is turned into a reference to the other, in
place: the name of the old symbol is the tail of the new name, and the old version is in the table
already. A package that wants anything else of a newer glibc is refused. (``patchelf`` cannot do it:
it renames symbols, but the needed version stays in the table.)
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, NeedsInstallError
from toolkit.hostsetup import apt
from toolkit.units import compare, numbers

SUITE = "sid"
PACKAGE = "apptainer"
MINIMUM = "1.4.5"  # fixes CVE-2025-65105
MOST_DAYS = 90
_KEYRINGS = tuple(
    Path(f"/usr/share/keyrings/debian-archive-keyring.{end}") for end in ("pgp", "gpg")
)
_BY_HAND = (
    "install Apptainer yourself (https://apptainer.org/docs/admin/latest/installation.html), "
    "then: toolkit setup"
)
_PREFIX, _BASE_VERSION = b"__isoc23_", b"GLIBC_2.2.5"
_TWINS = frozenset({b"strtol", b"strtoul", b"strtoll", b"strtoull"})
_ELF, _X86_64 = b"\x7fELF\x02\x01", 62  # 64 bits, little endian
_DYNSYM, _VERSYM, _VERNEED = 11, 0x6FFFFFFF, 0x6FFFFFFE
_RELR = b"GLIBC_ABI_DT_RELR"  # not a symbol's version, but a promise that glibc 2.36 and later make


def fetch(directory: Path) -> Path:
    """Download the package, which apt checks against the suite's signed lists, and fit it.

    ``directory`` is created, for apt's files, the package and its contents.

    Raises:
        CommandFailedError: the suite cannot be read, or its signature is wrong or too old.
        NeedsInstallError: the version is known to be vulnerable, or its programs want more of a
            newer glibc than can be given to them.
    """
    keyring = next((path for path in _KEYRINGS if path.exists()), _KEYRINGS[-1])
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    mirror = apt.debian_mirrors().get(codename, "(apt knows no mirror)")
    for name in ("lists/partial", "cache/archives/partial", "deb"):
        (directory / name).mkdir(parents=True)
    shell.run(["chown", "-R", "_apt", directory])  # as whom apt downloads
    (directory / "status").touch()
    (directory / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": directory / "sources.list",
        **dict.fromkeys(("Dir::Etc::sourceparts", "Dir::Etc::preferences"), "/dev/null"),
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": directory / "lists",
        # Nothing is installed, as far as this apt knows: else it would tell of the version that is.
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "APT::Default-Release": SUITE,
        "Acquire::Languages": "none",
        # The suite's own limit is a week, and mirrors lag more; this machine's clock may be slow.
        **dict.fromkeys(("Acquire::Check-Date", "Acquire::Check-Valid-Until"), "true"),
        **dict.fromkeys(("Acquire::Min-ValidTime", "Acquire::Max-FutureTime"), MOST_DAYS * 86400),
    }
    options = tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))
    complaints = apt.update(options)
    version = apt.candidate(PACKAGE, options)
    if version is None:
        cause = f"Debian's suite {SUITE} cannot be read from {mirror}"
        raise CommandFailedError(cause, details=complaints, next_step=_BY_HAND)
    require_safe(version, mirror)
    folder = directory / "deb"
    argv = ["apt-get", "-q", *options, "-o", "Acquire::Retries=3", "download", PACKAGE]
    shell.run(argv, env=apt.environment(), cwd=folder)
    return _fitted(next(folder.glob("*.deb")), directory / "tree", codename)


def require_safe(version: str, mirror: str) -> None:
    """Raise NeedsInstallError if the version of the package on ``mirror`` is vulnerable."""
    if compare(version.rpartition(":")[2], MINIMUM) < 0:
        raise NeedsInstallError(
            f"{mirror} has apptainer {version}; before {MINIMUM} it is known to be vulnerable",
            place=mirror,
            next_step=f"another mirror in apt's sources, or {_BY_HAND}",
        )


def _fitted(package: Path, tree: Path, codename: str) -> Path:
    """Return the package as it is, or fitted to this machine's glibc in a file beside it."""
    shell.run(["dpkg-deb", "-R", package, tree])
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    glibc = platform.libc_ver()[1]
    if not [path for path in files if _fit_program(path, numbers(glibc))]:
        return package
    control = tree / "DEBIAN/control"
    control.write_text(fit_control(control.read_text(), codename, glibc))
    (tree / "DEBIAN/md5sums").unlink()  # dpkg computes them when it unpacks
    target = package.with_name(f"{package.stem}+{codename}1.deb")
    shell.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", tree, target])
    target.chmod(0o644)
    return target


def fit_control(control: str, codename: str, glibc: str) -> str:
    """Return the control file with its own version, and the libc that its programs now need."""
    versioned = re.sub(r"^Version: (.*)$", rf"Version: \1+{codename}1", control, flags=re.MULTILINE)
    return re.sub(r"\blibc6 \(>= [^()]{0,60}\)", f"libc6 (>= {glibc})", versioned)


def _fit_program(path: Path, glibc: tuple[int, ...]) -> bool:
    """Fit a file in place if it is a program; return whether it had to be."""
    data = path.read_bytes()
    try:
        fitted = retarget(data, glibc) if data[:4] == _ELF[:4] else data
    except ValueError as error:
        raise NeedsInstallError(
            f"Debian's {PACKAGE} of today does not fit this Debian: {path.name} {error}",
            place=path.name,
            next_step=_BY_HAND,
        ) from error
    if fitted != data:
        path.write_bytes(fitted)
    return fitted != data


def retarget(data: bytes, glibc: tuple[int, ...]) -> bytes:
    """Return a program whose references fit a version of glibc; unchanged if they do already.

    Raises:
        ValueError: it is not a 64-bit x86 ELF file, or needs more of a newer glibc than the strtol
            family.
    """
    if data[:6] != _ELF or struct.unpack_from("<H", data, 18)[0] != _X86_64:
        raise ValueError("is not a 64-bit x86 ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * row) for row in range(count)]
    sections = {row[1]: row for row in rows}  # the kinds that are used occur once
    if _VERNEED not in sections or _DYNSYM not in sections:
        return data
    symbols = sections[_DYNSYM]
    strings = rows[symbols[6]][4]
    needed = list(_needed_versions(data, sections[_VERNEED][4], strings))
    too_new = {number: at for at, _, version, number in needed if _is_newer(version, glibc)}
    if not too_new:
        return data
    libraries = {library for _, library, _, number in needed if number in too_new}
    base = [need for need in needed if need[1:3] == (b"libc.so.6", _BASE_VERSION)]
    if libraries != {b"libc.so.6"} or not base:
        versions = {need[2].decode() for need in needed if need[3] in too_new}
        raise ValueError(f"wants {', '.join(sorted(versions))}")
    ((base_at, _, _, base_number),) = base
    patched, refused = bytearray(data), set()
    for number in range(symbols[5] // 24):
        at, version_at = symbols[4] + 24 * number, sections[_VERSYM][4] + 2 * number
        if struct.unpack_from("<H", data, version_at)[0] & 0x7FFF not in too_new:
            continue
        name_offset, _, _, defined_in = struct.unpack_from("<IBBH", data, at)
        name = _text(data, strings + name_offset)
        if defined_in or not name.startswith(_PREFIX) or name[len(_PREFIX) :] not in _TWINS:
            refused.add(name.decode(errors="replace"))
        struct.pack_into("<I", patched, at, name_offset + len(_PREFIX))
        struct.pack_into("<H", patched, version_at, base_number)
    if refused:
        raise ValueError(f"needs {', '.join(sorted(refused))} of a newer glibc")
    digest, flags, _, name_offset, _ = struct.unpack_from("<IHHII", data, base_at)
    for at in too_new.values():  # the loader checks every entry, used or not
        struct.pack_into("<IH", patched, at, digest, flags)
        struct.pack_into("<I", patched, at + 8, name_offset)
    return bytes(patched)


def _needed_versions(data: bytes, at: int, strings: int) -> Iterator[tuple[int, bytes, bytes, int]]:
    """Yield place, library, version and number of the needed versions, two nested linked lists."""
    following = -1
    while following:
        _, count, library, first, following = struct.unpack_from("<HHIII", data, at)
        inner = at + first
        for _ in range(count):
            _, _, number, name, step = struct.unpack_from("<IHHII", data, inner)
            yield inner, _text(data, strings + library), _text(data, strings + name), number
            inner += step
        at += following


def _text(data: bytes, at: int) -> bytes:
    return data[at : data.index(b"\0", at)]


def _is_newer(version: bytes, glibc: tuple[int, ...]) -> bool:
    numbers = re.match(rb"GLIBC_(\d+)\.(\d+)(?:\.\d+)?\Z", version)
    if numbers:
        return (int(numbers[1]), int(numbers[2])) > glibc
    return version.startswith(b"GLIBC_ABI_") and not (version == _RELR and glibc >= (2, 36))
