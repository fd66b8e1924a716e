"""What is done about a machine, from facts alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolkit.errors import NeedsInstallError
from toolkit.hostsetup.decide import (
    Facts,
    Missing,
    OperatingSystem,
    SetupOptions,
    adjustments,
    commands,
    decide,
    obstacle,
)
from toolkit.hostsetup.facts import operating_system

BOOKWORM = OperatingSystem(name="Debian GNU/Linux 12 (bookworm)", id="debian", codename="bookworm")
ROCKY = OperatingSystem(name="Rocky Linux 9.5", id="rocky", like=("rhel", "centos", "fedora"))
READY = Facts(
    os=BOOKWORM,
    root=True,
    user="root",
    apt=True,
    toolkit="/opt/toolkit/bin/toolkit",
    runtime="/usr/bin/apptainer",
)
SLURM = Missing(purpose="a real Slurm on this machine", packages=("munge", "slurmctld"))
PLAIN = SetupOptions()


def machine(**changes: Any) -> Facts:
    return msgspec.structs.replace(READY, **changes)


def refusal(facts: Facts, wishes: SetupOptions = PLAIN) -> NeedsInstallError:
    error = obstacle(facts, decide(facts), wishes)
    assert error is not None
    assert error.exit_code == 72
    return error


def test_a_fresh_debian_is_set_up_by_itself():
    facts = machine(runtime=None, missing=(SLURM,), fuse="closed", ids=False)
    actions = decide(facts)
    assert [action.kind for action in actions] == ["packages", "apptainer", "fuse", "ids"]
    assert obstacle(facts, actions, PLAIN) is None
    assert commands(facts, actions, PLAIN) == ("/opt/toolkit/bin/toolkit setup",)


def test_without_root_the_administrator_is_asked_with_the_same_wishes():
    facts = machine(runtime=None, missing=(SLURM,), root=False, user="kim", ids=False)
    error = refusal(facts, SetupOptions(accounting=True, tests=True))
    assert error.cause == "this machine is not ready (Debian GNU/Linux 12 (bookworm))"
    assert error.details == (
        "missing: munge slurmctld (a real Slurm on this machine)",
        "missing: apptainer (run and build containers)",
        "missing: kim has no range of subordinate user ids (to build images)",
        "as root: /opt/toolkit/bin/toolkit setup --with accounting --with tests",
        "as root: apptainer config fakeroot --add kim",
    )
    assert error.next_step == "ask the administrator to run the lines above as root, then go on"


def test_on_the_enterprise_linuxes_the_names_of_epel_are_given():
    missing = Missing(
        purpose="a real Slurm on this machine",
        packages=("libpmix-dev", "slurm-wlm-basic-plugins", "slurmd"),
    )
    facts = machine(os=ROCKY, apt=False, runtime=None, missing=(missing,))
    error = refusal(facts)
    assert error.details[-2:] == (
        "as root: dnf install -y epel-release && dnf install -y pmix-devel slurm-slurmd",
        "as root: dnf install -y epel-release && dnf install -y apptainer",
    )


def test_an_installation_that_was_cut_off_is_ended_even_where_all_programs_are_there():
    facts = machine(interrupted=True)
    (action,) = decide(facts)
    assert (action.kind, action.packages) == ("heal", ())
    assert obstacle(facts, (action,), PLAIN) is None
    asked = refusal(machine(interrupted=True, root=False))
    assert asked.details[-1] == "as root: /opt/toolkit/bin/toolkit setup"


@pytest.mark.parametrize(
    ("change", "kind", "first"),
    [
        ({"fuse": "closed"}, "fuse", "chmod 666 /dev/fuse"),
        (
            {"fuse": "absent"},
            "fuse",
            "modprobe fuse; test -e /dev/fuse || mknod /dev/fuse c 10 229",
        ),
        ({"ids": False, "user": "a b;c"}, "ids", "apptainer config fakeroot --add 'a b;c'"),
        ({"unresolved": "fresh"}, "name", r"printf '\n127.0.1.1 %s\n' fresh >> /etc/hosts"),
        ({"namespaces": False}, "namespaces", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ],
)
def test_adjustments(change, kind, first):
    (action,) = adjustments(machine(**change))
    assert (action.kind, action.by_hand[0]) == (kind, first)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        (
            'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_CODENAME=bookworm\n',
            "debian",
        ),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "rhel"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "suse"),
        ("", "other"),
    ],
)
def test_the_family_of_a_system(text, family):
    assert operating_system(text, "x86_64").family == family
