"""What a build borrows from its machine: pip's configuration, certificates and mirrors, translated; and no password in a log."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

import pytest

from toolkit.errors import ConfigError
from toolkit.hostsetup.apt import parse_mirrors
from toolkit.images.host.host_config import (
    find_secrets,
    mask_secrets,
    mount_options,
    read_pip_settings,
    translate_host_config,
)
from toolkit.images.host.kernel import Bind


@pytest.fixture
def pip_file(tmp_path, monkeypatch):
    """Return how to write a file of pip's below an empty home; only these and the machine's count."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[global]\n{text}")
        return str(path)

    return write


def list_by_pip() -> str:
    words = [sys.executable, "-m", "pip", "config", "list"]
    env = {**os.environ, "PIP_USER": "0"}  # `user = true` is an option of this command, too
    return subprocess.run(words, env=env, capture_output=True, text=True, cwd="/").stdout


def test_of_two_values_that_counts_which_counts_for_pip(pip_file, monkeypatch):
    for number, name in enumerate(("XDG_CONFIG_DIRS/pip", "HOME/.pip", "XDG_CONFIG_HOME/pip")):
        pip_file(f"{name}/pip.conf", f"index-url = https://{number}\n")
        assert read_pip_settings()["index-url"] == f"https://{number}"
    assert "global.index-url='https://2'\n" in list_by_pip()
    chosen = pip_file("chosen.conf", "proxy = http://p\n[install]\nretries =\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", chosen)  # in place of the user's
    known = {"index-url": "https://0", "proxy": "http://p"}
    assert read_pip_settings().items() >= known.items()
    assert {"global.proxy='http://p'", "global.index-url='https://0'"} <= {*list_by_pip().split()}
    pip_file("prefix/pip.conf", "index-url = https://p\nindex_url = https://prefix\nproxy = x\n")
    monkeypatch.setenv("PIP_TIMEOUT", "3")
    monkeypatch.setenv("PIP_PROXY", "")
    known = {"index-url": "https://prefix", "proxy": "http://p", "timeout": "3"}
    assert read_pip_settings().items() >= known.items()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_pip_settings() == {"timeout": "3"}


def test_pips_settings_are_those_of_an_install(pip_file):
    pip_file(
        "XDG_CONFIG_HOME/pip/pip.conf",
        'find-links =\n    /a\n    /it\'s "two"\nuser = true\ntimeout = 1\n'
        "[install]\nno-index = true\ntimeout = 2\n[list]\nproxy = x\n",
    )
    settings = read_pip_settings()
    assert settings["find-links"].split("\n") == ["", "/a", '/it\'s "two"']
    assert (settings["no-index"], settings["timeout"]) == ("true", "2")
    assert not {"user", "proxy"} & settings.keys()


def test_of_a_user_without_a_home_no_file_of_another_is_read(pip_file, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # of whom /etc/passwd says nothing
    pip_file("~/.pip/pip.conf", "trusted-host = planted\n")
    assert "trusted-host" not in read_pip_settings()


@pytest.mark.parametrize("text", [b"[global\n", b"[global]\nproxy = \xff\n"])
def test_a_configuration_that_pip_cannot_read_is_no_empty_one(text, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_bytes(text)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(ConfigError, match="cannot read its configuration") as caught:
        read_pip_settings()
    assert caught.value.place == str(tmp_path / "pip.conf")


def test_local_places_are_bound_and_renamed():
    settings = {
        "cert": "/etc/ssl/site.crt",
        "extra-index-url": "file:///srv/index/simple https://user:s3cret@pypi.example.org/simple",
        "find-links": "/srv/wheels",
        "timeout": "60",
    }
    loan = translate_host_config(settings, certificates="/etc/ssl/site.crt")
    assert loan.files["pip.conf"] == (
        "[global]\n"
        "extra-index-url = file:///mnt/extra-index-url/0/simple\n"
        "    https://user:s3cret@pypi.example.org/simple\n"
        "find-links = /mnt/find-links/1\n"
        "timeout = 60\n"
        "cert = /mnt/ca-certificates.crt\n"
    )
    assert loan.binds == (
        Bind(source="/srv/index", target="extra-index-url/0"),
        Bind(source="/srv/wheels", target="find-links/1"),
        Bind(source="/etc/ssl/site.crt", target="ca-certificates.crt"),
    )


def test_only_how_apt_reaches_its_archives_is_taken():
    dump = [
        'Acquire::http::Proxy "http://proxy.example.org:3128";',
        'Acquire::https::Proxy::deb.example.org "DIRECT";',
        'Acquire::https::Verify-Peer "false";',
        'APT::Install-Recommends "1";',
        'DPkg::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";',
    ]
    loan = translate_host_config({}, apt=dump, certificates="/c.crt")
    ours = 'Acquire::https::CaInfo "/mnt/ca-certificates.crt";'
    assert loan.files["apt.conf"].splitlines() == [*dump[:3], ours]
    assert "apt.conf" not in translate_host_config({}, apt=dump[3:]).files


LISTING = """\
Google|main|stable|stable|https://packages.example.com/apt
Debian|contrib|trixie|trixie|https://contrib.example.org/debian
Debian|main|bookworm-security|bookworm-security|https://sec.example.org/debian-security
Debian|main|bookworm|stable|https://one.example.org/debian
Debian|main|bookworm|stable|https://two.example.org/debian
Debian|main|trixie|trixie|mirror+file:/etc/mirrors
Ubuntu|main|noble|noble|https://ubuntu.example.org/ubuntu

broken line
"""
SECURITY, ONE = "https://sec.example.org/debian-security", "https://one.example.org/debian"


@pytest.mark.parametrize(
    ("listing", "mirrors"),
    [
        (LISTING, {"bookworm-security": SECURITY, "bookworm": ONE}),
        # Where apt has no lists yet, the name of the archive decides.
        (f"$(ORIGIN)|main|$(CODENAME)|bookworm|{ONE}", {"bookworm": ONE}),
        ("$(ORIGIN)|main|$(CODENAME)|noble|https://one.example.org/ubuntu", {}),
    ],
)
def test_the_mirror_is_debians_own(listing, mirrors):
    assert parse_mirrors(listing) == mirrors


def test_no_password_reaches_a_log():
    texts = [
        "a https://user:p%40ss@host/simple b",
        *"http://0123456789abcdef@host https://git@host https://host/x@y".split(),
    ]
    found = find_secrets(texts)
    assert set(found) == {"p%40ss", "p@ss", "0123456789abcdef"}
    line = mask_secrets(found, "Looking in indexes: https://user:p%40ss@host/simple, p@ss")
    assert line == "Looking in indexes: https://user:****@host/simple, ****"


@pytest.mark.parametrize("path", ["/with,comma", '/with "quotes"', "/with:colon", "/with blank"])
def test_any_path_can_be_bound(path):
    option, value = mount_options([Bind(source=path, target="/mnt/x")])
    assert option == "--mount"
    fields = next(csv.reader([value]))
    assert fields == ["type=bind", f"source={path}", "destination=/mnt/x", "ro"]
