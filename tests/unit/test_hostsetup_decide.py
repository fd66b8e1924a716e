"""What is done about a machine, from facts alone, and policy-rc.d while packages are installed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from toolkit.hostsetup.decide import Facts, adjustments, decide, is_able, needs
from toolkit.hostsetup.install import prevented_from_starting

READY = Facts(
    codename="bookworm",
    installs=True,
    root=True,
    user="root",
    toolkit="/opt/bin/python -m toolkit",
    runtime="/usr/bin/apptainer",
)
SLURM = {"a real Slurm on this machine": ("munge", "slurmctld")}


def machine(**changes: Any) -> Facts:
    return msgspec.structs.replace(READY, **changes)


def test_a_fresh_debian_is_set_up_by_itself():
    facts = machine(runtime=None, missing=SLURM, fuse=False, ids=False)
    actions = decide(facts)
    assert [action.kind for action in actions] == ["packages", "apptainer", "fuse", "ids"]
    assert is_able(facts, actions)


def test_without_root_the_administrator_is_asked_with_the_same_wishes():
    facts = machine(runtime=None, missing=SLURM, root=False, user="kim", ids=False)
    actions = decide(facts)
    error = needs(facts, actions, ("accounting", "tests"))
    assert not is_able(facts, actions)
    assert error.exit_code == 72
    assert error.details == (
        "missing: munge slurmctld (a real Slurm on this machine)",
        "missing: apptainer (run and build containers)",
        "missing: kim has no range of subordinate user ids (to build images)",
        "as root: /opt/bin/python -m toolkit setup --with accounting --with tests",
        "as root: apptainer config fakeroot --add kim",
    )
    assert error.next_step == "ask the administrator to run the lines above as root, then go on"


def test_on_other_systems_the_packages_are_listed_and_the_rest_is_done():
    facts = machine(installs=False, runtime=None, missing=SLURM)
    actions = decide(facts)
    assert not is_able(facts, actions)
    line = "the equivalent of: apt-get install --no-install-recommends apptainer munge slurmctld"
    assert needs(facts, actions, ()).details[-1] == f"as root: {line}"
    assert is_able(facts, adjustments(machine(fuse=False)))


def test_an_installation_that_was_cut_off_is_ended_even_where_all_programs_are_there():
    facts = machine(interrupted=True)
    (action,) = decide(facts)
    assert (action.kind, action.packages) == ("heal", ())
    assert is_able(facts, (action,))


@pytest.mark.parametrize(
    ("change", "kind", "last"),
    [
        ({"fuse": False}, "fuse", "chmod 666 /dev/fuse"),
        ({"ids": False, "user": "a b;c"}, "ids", "apptainer config fakeroot --add 'a b;c'"),
        ({"unresolved": "fresh"}, "name", r"printf '\n127.0.1.1 %s\n' fresh >> /etc/hosts"),
        ({"namespaces": False}, "namespaces", "sysctl -w user.max_user_namespaces=15000"),
        (
            {"root_exec": False},
            "capabilities",
            "apptainer config global --set 'root default capabilities' file",
        ),
    ],
)
def test_adjustments(change, kind, last):
    (action,) = adjustments(machine(**change))
    assert (action.kind, action.by_hand[-1]) == (kind, last)


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


def test_a_policy_of_the_administrator_stays(tmp_path):
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    with prevented_from_starting(policy):
        assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
