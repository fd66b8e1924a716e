"""What a build borrows from its machine: pip's configuration, certificates and mirrors, translated; and no password in a log."""

from __future__ import annotations

import csv
import os

import pytest

from toolkit.errors import ConfigError
from toolkit.hostsetup.apt import parse_mirrors
from toolkit.images.host import host_config
from toolkit.images.host.host_config import (
    Bind,
    find_secrets,
    mask_secrets,
    mount_options,
    read_pip_settings,
    translate_host_config,
)

_OURS = ("PIP_CONFIG_FILE",)
SETTINGS = {
    "cert": "/etc/ssl/site.crt",
    "extra-index-url": "file:///srv/index/simple https://user:s3cret@pypi.example.org/simple",
    "find-links": "/srv/wheels",
    "proxy": "http://proxy.example.org:3128",
    "timeout": "60",
}


def test_pips_settings_are_those_of_an_install(tmp_path, monkeypatch):
    """The real pip lists them."""
    file = tmp_path / "pip.conf"
    file.write_text(
        '[global]\nindex-url = https://a.example/simple\nfind-links =\n    /one\n    /it\'s "two"\n'
        "timeout = 1\nuser = true\n[install]\nno-index = true\ntimeout = 2\n[list]\nproxy = x\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    for name in [name for name in os.environ if name.startswith("PIP_") and name not in _OURS]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_RETRIES", "7")
    settings = read_pip_settings()
    assert settings["find-links"].split("\n") == ["", "/one", '/it\'s "two"']
    wanted = {"index-url": "https://a.example/simple", "no-index": "true", "retries": "7"}
    assert settings.items() >= (wanted | {"timeout": "2"}).items()
    assert not {"user", "proxy"} & settings.keys()
    monkeypatch.setenv("PIP_TIMEOUT", "3")
    assert read_pip_settings()["timeout"] == "3"


def test_no_module_of_the_current_directory_is_taken_for_pip(tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    read_pip_settings()
    assert not (tmp_path / "ran").exists()


def test_a_configuration_that_pip_cannot_read_is_no_empty_one(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text("[global\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(ConfigError, match="cannot read its configuration") as caught:
        read_pip_settings()
    assert any(str(tmp_path) in line for line in caught.value.details)


def test_of_a_key_in_several_files_pip_is_asked_which_counts(monkeypatch):
    listing = "global.index-url='https://system'\nglobal.index-url='https://user'\nbroken\n"
    monkeypatch.setattr(
        host_config, "_run", lambda *words: listing if words[-1] == "list" else "https://last\n"
    )
    assert read_pip_settings() == {"index-url": "https://last"}


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
