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

SETTINGS = {
    "cert": "/etc/ssl/site.crt",
    "extra-index-url": "file:///srv/index/simple https://user:s3cret@pypi.example.org/simple",
    "find-links": "/srv/wheels",
    "proxy": "http://proxy.example.org:3128",
    "timeout": "60",
}


@pytest.fixture
def pip_files(tmp_path, monkeypatch):
    """Return how to write a file of pip's below an empty home; only these and the machine's count."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_pips_settings_are_those_of_an_install(pip_files, tmp_path, monkeypatch):
    """As the real pip lists them: the places of its files, and which of two values counts."""
    text = (
        '[global]\nindex_url = https://{0}\nfind-links =\n    /{0}\n    /it\'s "two"\n'
        "timeout = 1\nuser = true\n[install]\nno-index = true\ntimeout = {0}\n[list]\nproxy = x\n"
    )
    names = ("XDG_CONFIG_DIRS/pip", "HOME/.pip", "XDG_CONFIG_HOME/pip")
    for number, name in enumerate(names):
        pip_files(f"{name}/pip.conf", text.format(number))
        settings = read_pip_settings()
        assert settings["index-url"] == f"https://{number}"
        assert settings["timeout"] == str(number)
    assert "global.index-url='https://2'\n" in _list_by_pip()
    assert settings["find-links"].split("\n") == ["", "/2", '/it\'s "two"']
    assert settings["no-index"] == "true"
    assert not {"user", "proxy"} & settings.keys()
    chosen = pip_files("chosen.conf", "[global]\nproxy = http://p\n[install]\nretries =\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", chosen)  # in place of the user's
    assert read_pip_settings()["proxy"] == "http://p"
    assert read_pip_settings()["index-url"] == "https://0"
    assert {"global.proxy='http://p'", "global.index-url='https://0'"} <= {*_list_by_pip().split()}
    text = "[global]\nindex-url = https://p\nindex_url = https://prefix\nproxy = x\n"
    pip_files("prefix/pip.conf", text)
    assert (
        read_pip_settings().items() >= {"index-url": "https://prefix", "proxy": "http://p"}.items()
    )
    monkeypatch.setenv("PIP_TIMEOUT", "3")
    monkeypatch.setenv("PIP_RETRIES", "7")
    monkeypatch.setenv("PIP_PROXY", "")
    assert (
        read_pip_settings().items() >= {"timeout": "3", "retries": "7", "proxy": "http://p"}.items()
    )
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # of whom /etc/passwd says nothing
    monkeypatch.delenv("PIP_CONFIG_FILE")
    pip_files("~/.pip/pip.conf", "[global]\ntrusted-host = planted\n")
    monkeypatch.chdir(tmp_path)
    assert read_pip_settings()["index-url"] == "https://prefix"
    assert "trusted-host" not in read_pip_settings()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_pip_settings() == {"timeout": "3", "retries": "7"}


def _list_by_pip() -> str:
    words = [sys.executable, "-m", "pip", "config", "list"]
    env = {**os.environ, "PIP_USER": "0"}  # `user = true` is an option of this command, too
    return subprocess.run(words, env=env, capture_output=True, text=True, cwd="/").stdout


@pytest.mark.parametrize("text", [b"[global\n", b"[global]\nproxy = \xff\n"])
def test_a_configuration_that_pip_cannot_read_is_no_empty_one(text, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_bytes(text)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(ConfigError, match="cannot read its configuration") as caught:
        read_pip_settings()
    assert caught.value.place == str(tmp_path / "pip.conf")


def test_local_places_are_bound_and_renamed():
    loan = translate_host_config(SETTINGS, certificates="/etc/ssl/site.crt")
    assert loan.files["pip.conf"] == (
        "[global]\n"
        "extra-index-url = file:///mnt/extra-index-url/0/simple\n"
        "    https://user:s3cret@pypi.example.org/simple\n"
        "find-links = /mnt/find-links/1\n"
        "proxy = http://proxy.example.org:3128\n"
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
        'Dir "/";',
        'DPkg::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";',
    ]
    loan = translate_host_config({}, apt=dump, certificates="/c.crt")
    assert loan.files["apt.conf"].splitlines() == [
        *dump[:3],
        'Acquire::https::CaInfo "/mnt/ca-certificates.crt";',
    ]
    assert "apt.conf" not in translate_host_config({}, apt=dump[3:]).files


def test_the_mirror_is_debians_own():
    listing = (
        "Google|main|stable|stable|https://packages.example.com/apt\n"
        "Debian|contrib|trixie|trixie|https://contrib.example.org/debian\n"
        "Debian|main|bookworm-security|bookworm-security|https://sec.example.org/debian-security\n"
        "Debian|main|bookworm|stable|https://one.example.org/debian\n"
        "Debian|main|bookworm|stable|https://two.example.org/debian\n"
        "Debian|main|trixie|trixie|mirror+file:/etc/mirrors\n"
        "Ubuntu|main|noble|noble|https://ubuntu.example.org/ubuntu\n"
        "\n"
        "broken line\n"
    )
    assert parse_mirrors(listing) == {
        "bookworm-security": "https://sec.example.org/debian-security",
        "bookworm": "https://one.example.org/debian",
    }


def test_where_apt_has_no_lists_yet_the_name_of_the_archive_decides():
    assert parse_mirrors("$(ORIGIN)|main|$(CODENAME)|bookworm|https://one.example.org/debian") == {
        "bookworm": "https://one.example.org/debian"
    }
    assert parse_mirrors("$(ORIGIN)|main|$(CODENAME)|noble|https://one.example.org/ubuntu") == {}


def test_no_password_reaches_a_log():
    texts = [
        "a https://user:p%40ss@host/simple b",
        *"http://0123456789abcdef@host https://git@host https://host/x@y".split(),
    ]
    found = find_secrets(texts)
    assert set(found) == {"p%40ss", "p@ss", "0123456789abcdef"}
    assert (
        mask_secrets(found, "Looking in indexes: https://user:p%40ss@host/simple, p@ss")
        == "Looking in indexes: https://user:****@host/simple, ****"
    )


@pytest.mark.parametrize(
    "path", ["/plain", "/with,comma", '/with "quotes"', "/with:colon", "/with blank"]
)
def test_any_path_can_be_bound(path):
    option, value = mount_options([Bind(source=path, target="/mnt/x")])
    assert option == "--mount"
    fields = next(csv.reader([value]))
    assert fields == ["type=bind", f"source={path}", "destination=/mnt/x", "ro"]
