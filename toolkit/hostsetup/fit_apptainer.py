"""Fit the Apptainer of Debian's rolling suite to a Debian that has no package of it.

The package comes from the mirror that this machine uses, and is trusted because of the archive's
signature, as every package is. A mirror may be some weeks behind, and an attacker in its place
could replay an old, signed state with an Apptainer that is known to be vulnerable: so the signed
date must not be older than ``MOST_DAYS``, nor the version than ``MINIMUM``.

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
import shutil
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
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


def open_suite(directory: Path, codename: str) -> tuple[tuple[str, ...], str]:
    """Set apt up for the suite in ``directory``, and fetch its lists.

    Returns:
        The options of apt for the suite, and the version of its package.

    Raises:
        CommandFailedError: they cannot be had, their signature is wrong, or they are too old.
        NeedsInstallError: the suite's package is known to be vulnerable.
    """
    keyring = next((path for path in _KEYRINGS if path.exists()), _KEYRINGS[-1])
    mirror = apt.debian_mirrors().get(codename)
    if mirror is None:
        raise CommandFailedError(
            f"apt knows no mirror of Debian {codename} here",
            place="/etc/apt/sources.list",
            next_step=_BY_HAND,
        )
    for name in ("lists/partial", "cache/archives/partial", "deb"):
        (directory / name).mkdir(parents=True)
    for path in (directory.parent, directory, *directory.rglob("*")):
        path.chmod(0o755)
        with suppress(LookupError, PermissionError):
            shutil.chown(path, "_apt")  # as which apt downloads
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
        # The suite's own limit is a week, and mirrors lag more; its signature is checked all the
        # same, and its age by us.
        "Acquire::Check-Valid-Until": "false",
    }
    options = tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))
    complaints = apt.update(options)
    version = apt.candidate(PACKAGE, options)
    if version is None:
        cause = f"Debian's suite {SUITE} cannot be read from {mirror}"
        raise CommandFailedError(cause, details=complaints, next_step=_BY_HAND)
    releases = (path.read_text(errors="replace") for path in (directory / "lists").glob("*Release"))
    require_safe(releases, version, time.time(), mirror)
    return options, version


def require_safe(releases: Iterable[str], version: str, now: float, mirror: str) -> None:
    """Refuse a signed state of the archive that is too old, and a vulnerable version. Pure.

    Args:
        releases: the texts of its Release files, whose signatures apt has checked.
        version: of the package.
        now: in seconds since 1970.
        mirror: where they come from.

    Raises:
        CommandFailedError: the newest is too old, or none has a date.
        NeedsInstallError: the version is older than ``MINIMUM``.
    """
    step = f"another mirror in apt's sources, or {_BY_HAND}"
    dates = [date for text in releases for date in re.findall(r"^Date: (.+)$", text, re.MULTILINE)]
    newest = max((parsedate_to_datetime(date).timestamp() for date in dates), default=0.0)
    days = int((now - newest) // 86400)
    if days > MOST_DAYS:
        age = f"is {days} days old, {MOST_DAYS} are the most" if dates else "has no date"
        raise CommandFailedError(
            f"the suite {SUITE} on {mirror} {age}: "
            "an old state could be replayed to install a vulnerable Apptainer",
            place=mirror,
            next_step=step,
        )
    if compare(version.rpartition(":")[2], MINIMUM) < 0:
        cause = f"{mirror} has apptainer {version}; before {MINIMUM} it is known to be vulnerable"
        raise NeedsInstallError(cause, place=mirror, next_step=step)


def fetch_fitted(directory: Path, options: tuple[str, ...], codename: str) -> Path:
    """Download the package, which apt checks against the signed lists, and fit it to this glibc.

    Raises:
        NeedsInstallError: its programs want more of a newer glibc than can be given to them.
    """
    folder, tree = directory / "deb", directory / "tree"
    argv = ["apt-get", "-q", *options, "-o", "Acquire::Retries=3", "download", PACKAGE]
    shell.run(argv, env=apt.environment(), cwd=folder)
    package = next(folder.glob("*.deb"))
    shell.run(["dpkg-deb", "-R", package, tree])
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    glibc = platform.libc_ver()[1]
    if not [path for path in files if _fit_program(path, numbers(glibc), codename)]:
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


def _fit_program(path: Path, glibc: tuple[int, ...], codename: str) -> bool:
    """Fit a file in place if it is a program; return whether it had to be."""
    data = path.read_bytes()
    try:
        fitted = retarget(data, glibc) if data[:4] == _ELF[:4] else data
    except ValueError as error:
        raise NeedsInstallError(
            f"Debian's {PACKAGE} of today does not fit {codename}: {path.name} {error}",
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
