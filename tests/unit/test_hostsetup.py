"""What is done about a machine, from facts alone; policy-rc.d; programs fitted to an older glibc, on ELF files made here."""

from __future__ import annotations

import os
import platform
import struct
from contextlib import nullcontext, suppress
from typing import Any

import msgspec
import pytest

from tests.progress import Silent
from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.hostsetup import apt, parts
from toolkit.hostsetup.decide import Facts, adjustments, is_able, missing, needs
from toolkit.hostsetup.facts import read_facts
from toolkit.hostsetup.fit_apptainer import fit_control, require_safe, retarget
from toolkit.hostsetup.install import install, prevented_from_starting

TOOL, APPTAINER = "/opt/bin/python -m toolkit", "/usr/bin/apptainer"
READY = Facts(installs=True, root=True, user="root", toolkit=TOOL, runtime=APPTAINER)
SLURM = {"a real Slurm on this machine": ("munge", "slurmctld")}


def machine(**changes: Any) -> Facts:
    return msgspec.structs.replace(READY, **changes)


def test_a_fresh_debian_is_set_up_by_itself():
    facts = machine(runtime=None, missing=SLURM, fuse=False, ids=False)
    words = [text.split()[0] for text in missing(facts)]
    assert words == ["munge", "apptainer", "/dev/fuse", "root"]
    assert is_able(facts)


def test_without_root_the_administrator_is_asked_with_the_same_wishes():
    facts = machine(runtime=None, missing=SLURM, root=False, user="kim", ids=False)
    error = needs(facts, ("accounting", "tests"))
    wished = needs(machine(updates=True), ("tests",))
    assert wished.next_step == "toolkit setup --with=tests --update"
    assert not is_able(facts)
    assert error.exit_code == 72
    assert error.details == (
        "missing: munge slurmctld (a real Slurm on this machine)",
        "missing: apptainer (run and build containers)",
        "missing: kim has no range of subordinate user ids (to build images)",
        "as root: /opt/bin/python -m toolkit setup --with=accounting --with=tests",
        "as root: apptainer config fakeroot --add kim",
    )
    assert error.next_step == "ask the administrator to run the lines above as root, then go on"


def test_on_other_systems_the_packages_are_listed_and_the_rest_is_done():
    facts = machine(installs=False, runtime=None, missing=SLURM)
    assert not is_able(facts)
    line = "the equivalent of: apt-get install --no-install-recommends apptainer munge slurmctld"
    assert needs(facts, ()).details[-1] == f"as root: {line}"
    assert is_able(machine(installs=False, fuse=False))


def test_facts_of_a_user_without_a_name_on_another_debian(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    monkeypatch.setattr(shell, "which", lambda _: "/usr/bin/apt-get")
    facts = read_facts()
    assert (facts.user, facts.installs) == ("12345", True)


def test_where_all_programs_are_there_an_installation_is_ended_or_asked_for():
    assert missing(READY) == ()
    assert missing(machine(updates=True)) == ("newest apptainer (run and build containers)",)
    facts = machine(interrupted=True)
    (text,) = missing(facts)
    assert "interrupted" in text
    assert is_able(facts)


@pytest.mark.parametrize(
    ("change", "last"),
    [
        ({"fuse": False}, "chmod 666 /dev/fuse"),
        ({"ids": False, "user": "a b;c"}, "apptainer config fakeroot --add 'a b;c'"),
        ({"unresolved": "fresh"}, r"printf '\n127.0.1.1 %s\n' fresh >> /etc/hosts"),
        ({"namespaces": False}, "sysctl -w user.max_user_namespaces=15000"),
        ({"root_exec": False}, "apptainer config global --set 'root default capabilities' file"),
    ],
)
def test_adjustments(change, last):
    (lines,) = adjustments(machine(**change)).values()
    assert lines[-1] == last


def test_no_dpkg_is_healed_where_there_is_none(tmp_path, monkeypatch):
    left = tmp_path / "left"
    left.mkdir()
    healed = list[str]()
    monkeypatch.setattr(parts, "WORKPLACE", left)
    monkeypatch.setattr(apt, "heal", healed.append)
    for name, value in (("_LOCK", tmp_path / "lock"), ("read_facts", lambda *_, **__: READY)):
        monkeypatch.setattr(f"toolkit.hostsetup.install.{name}", value)
    monkeypatch.setattr("toolkit.hostsetup.install.prevented_from_starting", nullcontext)
    monkeypatch.setattr(shell, "which", lambda _: None)
    assert install((), Silent()) == READY
    assert (healed, left.exists()) == ([], False)


def test_daemons_are_kept_from_starting_for_as_long_as_it_takes(tmp_path):
    policy = tmp_path / "policy-rc.d"
    with suppress(KeyboardInterrupt), prevented_from_starting(policy):
        written = policy.read_text()
        raise KeyboardInterrupt
    assert (written[-9:], list(tmp_path.iterdir())) == ("exit 101\n", [])
    policy.write_text(written)  # by one that was killed
    with prevented_from_starting(policy):
        assert policy.stat().st_mode & 0o777 == 0o755
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["policy-rc.d", "policy-rc.d.before-toolkit"])
def test_a_policy_of_the_administrator_stays(name, tmp_path):
    """Also one that an earlier version has put aside."""
    (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
    policy = tmp_path / "policy-rc.d"
    with prevented_from_starting(policy):
        assert ("exit 101" in policy.read_text()) == (name != policy.name)
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert [*tmp_path.iterdir()] == [policy]


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
