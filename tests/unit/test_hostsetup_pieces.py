"""The pure pieces of setting a machine up: what apt prints, Apptainer's configuration, the package's control file, policy-rc.d."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.errors import CommandFailedError, ConfigError, NeedsInstallError
from toolkit.hostsetup import apptainer_debian, apt, capabilities, daemons, newer
from toolkit.hostsetup.install import announcement

# From apt 2.6 on bookworm: apt-get --print-uris -y install slurmdbd
APT_SAYS = """\
Reading package lists...
The following NEW packages will be installed:
  libmariadb3 mariadb-common mysql-common slurm-wlm-mysql-plugin slurmdbd
2 upgraded, 5 newly installed, 0 to remove and 127 not upgraded.
Need to get 258 kB/472 kB of archives.
After this operation, 1476 kB of additional disk space will be used.
'http://mirror.example.org/debian/pool/main/s/slurm-wlm/slurm-wlm-mysql-plugin_22.05.8-4%2bdeb12u3_amd64.deb' slurm-wlm-mysql-plugin_22.05.8-4+deb12u3_amd64.deb 181196 MD5Sum:e3b7
'http://mirror.example.org/debian/pool/main/s/slurm-wlm/slurmdbd_22.05.8-4%2bdeb12u3_amd64.deb' slurmdbd_22.05.8-4+deb12u3_amd64.deb 76972 MD5Sum:3b3d
"""
STATUS = (
    "Name:\tcat\nCapInh:\t0000000000000000\nCapPrm:\t000001fffeffffff\nCapEff:\t000001fffeffffff\n"
)
CONFIGURATION = "# ROOT DEFAULT CAPABILITIES: [full/file/no]\nroot default capabilities = full\nallow setuid = yes\n"


def test_apts_estimate_is_read() -> None:
    estimate = apt.read_estimate(APT_SAYS)
    assert estimate == apt.Estimate(
        new=5, upgraded=2, fetch=258168, disk="1476 kB", sources=("mirror.example.org",)
    )
    assert announcement(estimate, None, "bookworm") == (
        "5 packages and 2 upgrades: 258 kB to fetch from mirror.example.org, 1476 kB on disk",
    )


RELEASE = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\nSuite: unstable\nDate: {}\nValid-Until: {}\nSHA256:\n"
NOW = 1795300000.0  # Sat, 21 Nov 2026


@pytest.mark.parametrize(
    ("dates", "refused"),
    [
        (["Fri, 20 Nov 2026 08:08:01 UTC"], ""),
        (["Fri, 30 Oct 2026 08:08:01 UTC"], ""),
        (["Mon, 24 Aug 2026 08:08:01 UTC"], ""),
        (["Sun, 23 Aug 2026 08:00:00 +0000"], ""),
        (["Fri, 21 Aug 2026 08:08:01 UTC"], "is 92 days old, 90 are the most"),
        (["Mon, 01 Dec 2025 00:00:00 UTC"], "is 355 days old"),
        (["Mon, 01 Dec 2025 00:00:00 UTC", "Fri, 20 Nov 2026 08:08:01 UTC"], ""),
        ([], "has no date"),
    ],
)
def test_an_old_state_of_the_archive_is_not_taken(dates: list[str], refused: str) -> None:
    releases = [RELEASE.format(date, date) for date in dates] or ["Origin: Debian\n"]
    if not refused:
        apptainer_debian.require_recent(releases, NOW, "http://mirror.example.org/debian")
        return
    with pytest.raises(CommandFailedError, match=refused) as caught:
        apptainer_debian.require_recent(releases, NOW, "http://mirror.example.org/debian")
    assert caught.value.place == "http://mirror.example.org/debian"
    assert "toolkit setup" in str(caught.value.next_step)


TAKEN = ("1.4.5-2", "1.4.10-1", "2.0~rc1-1", "1:1.4.5-1")
REFUSED = ("1.4.4-2", "1.3.6-1", "1:1.3.0")


@pytest.mark.parametrize(
    ("version", "taken"), [*((one, True) for one in TAKEN), *((one, False) for one in REFUSED)]
)
def test_a_version_that_is_known_to_be_vulnerable_is_not_taken(version: str, taken: bool) -> None:
    if taken:
        apptainer_debian.require_new_enough(version, "mirror")
    else:
        with pytest.raises(NeedsInstallError, match="known to be vulnerable"):
            apptainer_debian.require_new_enough(version, "mirror")


def test_a_newer_version_is_known_until_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(newer, "NOTE", tmp_path / "note.json")
    monkeypatch.setattr(
        newer, "fitted", lambda codename: "1.4.5-2" if codename == "bookworm" else ""
    )
    monkeypatch.setattr(newer, "_is_newer", lambda version, other: version > other)
    assert newer.known("bookworm") == ""
    assert newer.is_due(NOW)
    for offered, expected in (("1.4.6-1", "1.4.6-1"), ("1.4.5-2", ""), ("", "")):
        newer.NOTE.write_text(json.dumps({"checked": NOW, "offered": offered}))
        assert newer.known("bookworm") == expected
        assert newer.known("trixie") == ""
    assert not newer.is_due(NOW + 6 * 86400)
    assert newer.is_due(NOW + 8 * 86400)
    assert newer.is_due(NOW - 86400), "a clock that was wrong when it was noted"
    newer.NOTE.write_text("{")
    assert (newer.known("bookworm"), newer.is_due(NOW)) == ("", True)


def test_what_root_lacks_is_read_from_the_kernels_mask() -> None:
    have, lacking = capabilities.permitted(STATUS, 40)
    assert lacking == ("CAP_SYS_RESOURCE",)
    assert len(have) == 40
    assert capabilities.permitted("CapPrm:\t000001ffffffffff\n", 40)[1] == ()
    assert (
        capabilities.permitted(STATUS, 37)[0][-1] == "CAP_AUDIT_READ"
    )  # an older kernel knows fewer


def test_one_line_of_the_configuration_changes() -> None:
    changed = capabilities.with_root_default_file(CONFIGURATION)
    assert changed == CONFIGURATION.replace("= full", "= file")
    assert capabilities.with_root_default_file(changed) == changed
    assert capabilities.root_default(CONFIGURATION) == "full"
    assert capabilities.root_default(changed) == "file"
    assert capabilities.root_default("") == "full"
    assert (
        capabilities.with_root_default_file("a = b") == "a = b\nroot default capabilities = file\n"
    )


def test_other_users_capabilities_stay() -> None:
    text = capabilities.with_root_capabilities(
        '{"users": {"kim": ["CAP_NET_RAW"]}, "groups": {}}', ("CAP_CHOWN",)
    )
    assert json.loads(text) == {
        "users": {"kim": ["CAP_NET_RAW"], "root": ["CAP_CHOWN"]},
        "groups": {},
    }
    assert json.loads(capabilities.with_root_capabilities("", ())) == {"users": {"root": []}}


@pytest.mark.parametrize("broken", ["{", "[]", '{"users": 3}'])
def test_a_broken_list_of_capabilities_is_not_overwritten(broken: str) -> None:
    with pytest.raises(ConfigError):
        capabilities.with_root_capabilities(broken, ())


def test_the_control_file_gets_a_version_of_its_own_and_the_libc_that_is_there() -> None:
    control = "Package: apptainer\nVersion: 1.4.5-2\nDepends: ca-certificates, libc6 (>= 2.38), libseccomp2 (>= 2.5.0)\n"
    assert apptainer_debian.fitted_control(control, "bookworm", (2, 36)) == (
        "Package: apptainer\nVersion: 1.4.5-2+bookworm1\nDepends: ca-certificates, libc6 (>= 2.36), libseccomp2 (>= 2.5.0)\n"
    )


def test_the_mirror_is_the_one_of_the_release_itself() -> None:
    lines = [
        "http://third.example.org/apt/|bookworm|bookworm|Somebody",
        "http://mirror.example.org/debian-security/|bookworm-security|bookworm-security|Debian-Security",
        "http://mirror.example.org/debian/|bookworm-updates|bookworm-updates|Debian",
        "http://mirror.example.org/debian/|bookworm|stable|Debian",
    ]
    assert apptainer_debian.read_mirror(lines, "bookworm") == "http://mirror.example.org/debian/"
    assert apptainer_debian.read_mirror(lines, "trixie") is None


def test_policy_is_written_and_taken_away(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with daemons.prevented_from_starting(policy):
        assert policy.stat().st_mode & 0o777 == 0o755
        assert policy.read_text().endswith("exit 101\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_policy_that_was_there_comes_back_whatever_happens(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    policy.chmod(0o750)
    with pytest.raises(failure), daemons.prevented_from_starting(policy):
        raise failure
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert policy.stat().st_mode & 0o777 == 0o750
    assert list(tmp_path.iterdir()) == [policy]


def test_after_a_kill_9_the_next_call_puts_it_back(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.with_name("policy-rc.d.before-toolkit").write_text("the site's own")
    policy.write_text(daemons._DENY)
    daemons.restore(policy)
    assert policy.read_text() == "the site's own"
    assert list(tmp_path.iterdir()) == [policy]


def test_a_policy_of_somebody_else_is_not_taken_for_ours(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    daemons.restore(policy)
    assert policy.exists()
