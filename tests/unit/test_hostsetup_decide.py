"""What is done about a machine, from facts alone, and policy-rc.d while packages are installed."""

from __future__ import annotations

import os
import platform
from contextlib import nullcontext, suppress
from typing import Any

import msgspec
import pytest

from tests.progress import Silent
from toolkit import shell
from toolkit.hostsetup import apt, parts
from toolkit.hostsetup.decide import Facts, adjustments, is_able, missing, needs
from toolkit.hostsetup.facts import read_facts
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
