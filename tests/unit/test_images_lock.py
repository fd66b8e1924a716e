"""Locks, and what a build borrows from its machine: files of packages, pip's and apt's configuration; and no password in a log."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.stand_in import standing_in
from toolkit.errors import BuildError, CommandFailedError, ConfigError, UsageError
from toolkit.hostsetup.apt import parse_mirrors
from toolkit.images.host import host_config as host
from toolkit.images.host.host_config import (
    HostConfig,
    find_secrets,
    mask_secrets,
    mount_options,
    read_pip_settings,
    translate_host_config,
)
from toolkit.images.host.kernel import Bind
from toolkit.images.lockfile import apply as locks
from toolkit.images.lockfile import files as locking
from toolkit.images.lockfile import make
from toolkit.images.lockfile.index import File, Index
from toolkit.images.recipe import library
from toolkit.images.recipe.lock import Lock, Pinned, format_lock, parse_lock
from toolkit.images.store.contents import Contents, DebianPackage, PythonPackage
from toolkit.model.image import BaseImage, Layer
from toolkit.shell import run

LOCK = Lock(
    name="small",
    recipe_hash="ab" * 32,
    epoch=1700000000,
    base=BaseImage(reference="debian bookworm"),
    tools={"apptainer": "1.4.5"},
    apt={"libc6": "2.36-9", "python3": "3.11.2-1+b1"},
    apt_build={"g++": "12.2", "python3-pip-whl": "23.0.1+dfsg-1"},
    pip=(Pinned(name="horovod", version="0.28.1", sha256=("cd" * 32,)),),
    pip_build=(Pinned(name="wheel", version="0.48.0", sha256=("01" * 32, "02" * 32)),),
    brought={"pip": "23.0.1"},
    layers=(Layer(name="base", sha256="03" * 32),),
)
TEXT = format_lock(LOCK)


@pytest.fixture
def small(tmp_path):
    """A recipe without a lock."""
    path = tmp_path / "small.toml"
    path.write_text('summary = "s"\nbase = { kind = "debootstrap", release = "bookworm" }\n')
    return library.load(str(path))


def test_a_lock_is_a_requirements_file_and_read_again():
    assert parse_lock(TEXT, Lock) == LOCK
    plain = [line for line in TEXT.splitlines() if not line.startswith("#")]
    assert plain == [f"horovod==0.28.1 --hash=sha256:{'cd' * 32}"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "has no lock"),
        (TEXT.replace("#: epoch", "#: epoc"), "epoc"),
        (TEXT.replace("--hash", "--has"), "no requirement with a hash"),
        (TEXT.replace("sha256:cd", "sha256:/.", 1), "no requirement with a hash"),
        (TEXT.replace("sha256:cd", "sha256:CD", 1), "a SHA-256"),
        ('format = 2\nname = "small"\n', "make the lock again"),
        ("#: format = 3\n#: parts = []\n", "format 3, not 4: make the lock again"),
        ("", "name"),
        (TEXT, "not the one that was locked"),
        (format_lock(replace(LOCK, format=99)), "format 99"),
    ],
)
def test_a_lock_that_is_missing_broken_or_of_another_time_is_refused(tmp_path, small, text, reason):
    path = locking.lock_path(str(tmp_path / "small.toml"))
    assert path == tmp_path / "small.lock"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        locking.read(path, small)
    right = replace(LOCK, recipe_hash=library.hash_recipe(small))
    path.write_text(format_lock(right))
    assert locking.read(path, small) == right


def wheels(directory: Path, **files: bytes) -> Path:
    """Make a directory of files of packages: ``a_1`` is the wheel of a 1."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / f"{name.replace('_', '-')}-py3-none-any.whl").write_bytes(data)
    return directory


def source(path: Path, setup: str = "") -> Path:
    """Make the source of a package."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/setup.py")
        member.size = len(setup)
        archive.addfile(member, io.BytesIO(setup.encode()))
    return path


def names(index: Index, wanted: dict[str, str]) -> list[str]:
    return sorted(file.name for file in index.list_files(wanted, "3.11.2"))


def test_all_places_of_pip_are_searched_and_no_setup_runs(tmp_path):
    """Of an index, a directory, and one that is missing; uv fails as a whole if one has nothing."""
    ran = tmp_path / "ran"
    sdist = source(tmp_path / "files/some_thing-2.tar.gz", f"open({str(ran)!r}, 'w')")
    page = tmp_path / "simple/some-thing/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{sdist.name}">2</a>')
    settings = {
        "find-links": f"{wheels(tmp_path / 'wheels', b_1=b'', c_1=b'')} {tmp_path / 'missing'}",
        "index-url": (tmp_path / "simple").as_uri(),
        "extra-index-url": (tmp_path / "nowhere").as_uri(),
    }
    wanted = {"Some.Thing": "2", "b": "1", "gone": "1", "c": "9", "old": "2004d", "../../x": "1"}
    files = Index(settings=settings).list_files(wanted, "3.11.2")
    assert {file.package: file.name for file in files} == {
        "b": "b-1-py3-none-any.whl",
        "some-thing": "some_thing-2.tar.gz",
    }
    for file in files:
        Index(settings=settings).fetch(file, tmp_path / "here")
        assert file.sha256 == hashlib.sha256((tmp_path / "here").read_bytes()).hexdigest()
    assert not ran.exists()
    alone = Index(settings=settings | {"no-index": "true"})
    assert names(alone, wanted) == ["b-1-py3-none-any.whl"]


def test_the_index_of_a_recipe_matters_only_for_what_the_others_do_not_have(tmp_path):
    settings = {"index-url": tmp_path.as_uri(), "find-links": str(wheels(tmp_path, a_1=b""))}
    source(tmp_path / "b-1.tar.gz")
    index = Index(settings=settings, further=("http://127.0.0.1:1/simple",))
    assert names(index, {"a": "1", "b": "1"}) == ["a-1-py3-none-any.whl", "b-1.tar.gz"]
    with pytest.raises(CommandFailedError, match="cannot be read"):
        names(index, {"c": "1"})


@pytest.mark.parametrize("code", [401, 403])
def test_an_index_that_refuses_a_login_is_not_one_without_the_package(code):
    with standing_in() as server:
        server.answers = dict.fromkeys(("/s/a/", "/s/b/"), lambda _: (code, {}, b""))
        index = Index(settings={"index-url": f"http://somebody:hunter22@{server.name}/s"})
        with pytest.raises(CommandFailedError) as caught:
            index.list_files({"a": "1", "b": "1"}, "3.11")
    told = f"{caught.value} {caught.value.place} {caught.value.details}"
    assert str(code) in told
    assert "hunter22" not in told


def test_files_of_a_lock_are_brought_by_their_hash_only(tmp_path, small, monkeypatch):
    place, name = wheels(tmp_path / "wheels", a_1=b"right"), "a-1-py3-none-any.whl"
    settings = {"no-index": "true", "find-links": str(place)}
    monkeypatch.setattr(host, "read_pip_settings", lambda: settings)
    monkeypatch.setattr(host, "collect_host_config", HostConfig)
    digest = hashlib.sha256(b"right").hexdigest()
    right = Pinned(name="a", version="1", sha256=(digest,))
    lock = replace(LOCK, pip=(right,), pip_build=())

    def fetch(images: str, target: str) -> bytes:
        locking.fetch_files(lock, small, tmp_path / images, tmp_path / target)
        return (tmp_path / target / name).read_bytes()

    assert fetch("images", "first") == b"right"
    kept = next((tmp_path / "images").rglob("*.whl"))
    # It is kept: the index may lose it, or have another under its name.
    (place / name).write_bytes(b"wrong")
    assert fetch("images", "second") == b"right"
    with pytest.raises(BuildError, match="no package index has 1 file") as caught:
        fetch("others", "third")
    assert caught.value.details[0].startswith("a 1 (sha256 ")
    # What is kept is not believed either, of whoever shares the directory, and harms no other.
    kept.write_bytes(b"spoilt")
    wheels(kept.parent, a_0=b"of another name")
    (place / name).write_bytes(b"right")
    os.utime(place / name)
    assert fetch("images", "fourth") == b"right"
    assert [path.name for path in (tmp_path / "fourth").iterdir()] == [name]


def test_a_package_has_all_wheels_that_fit_else_its_source():
    files = ("n-1.tar.gz", "n-1-cp311-cp311-linux_x86_64.whl", "n-1-py3-none-any.whl", "o-1.zip")
    offered = [File(package=name[0], name=name, url="", sha256=name) for name in files]
    pinned = make._pin({"N": "1", "o": "1", "gone": "1"}, offered)
    assert [(each.name, each.sha256) for each in pinned] == [("N", files[1:3]), ("o", files[3:])]
    compiled = make._pin({"N": "1"}, offered, {"n"})
    assert compiled[0].sha256 == files[:1], "a step compiles it again"


def debian_package(name: str, version: str) -> DebianPackage:
    return DebianPackage(
        name=name, version=version, architecture="amd64", source=name, source_version=version
    )


@pytest.mark.parametrize(
    ("machine", "libc", "platform"),
    [
        ("x86_64", "2.36-9+deb12u1", "x86_64-manylinux_2_36"),
        ("x86_64", "2.27-3ubuntu1", "x86_64-manylinux_2_17"),
        ("x86_64", "", "x86_64-manylinux_2_40"),
        ("riscv64", "2.36", ""),
    ],
)
def test_the_platform_of_an_image_is_one_that_uv_knows(monkeypatch, machine, libc, platform):
    contents = Contents(debian=(debian_package("libc6", libc),) if libc else ())
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert make._platform(contents) == platform


def test_what_debian_brought_of_python_is_from_no_index():
    assert make._of_debian(LOCK) == {"pip": "23.0.1"}


def test_a_locked_build_is_lent_the_locked_files_and_nothing_else():
    proxy, authorities = 'Acquire::http::Proxy "http://p";\n', "/etc/ssl/ca.crt"
    loan = HostConfig(
        files={"pip.conf": "[global]\nindex-url = https://u:secret@x/simple\n", "apt.conf": proxy},
        binds=(
            Bind(source="/opt/wheels", target="find-links/0"),
            Bind(source=authorities, target="ca-certificates.crt"),
        ),
    )
    lent = locks.locked_host_config(loan, LOCK, "/somewhere/locked")
    pip = "[global]\nno-index = true\nfind-links = /mnt/find-links/locked\n"
    assert lent.files["pip.conf"] == pip
    assert lent.files["apt.conf"].startswith(proxy)
    assert 'Dir::Etc::preferences "/mnt/apt-preferences";' in lent.files["apt.conf"]
    assert "Package: g++\nPin: version 12.2\nPin-Priority: 1001\n" in lent.files["apt-preferences"]
    assert lent.binds == (
        Bind(source=authorities, target="ca-certificates.crt"),
        Bind(source="/somewhere/locked", target="find-links/locked"),
    )


@pytest.mark.parametrize(
    ("offered", "code", "says"),
    [
        ("g++ | 12.2 | main", 0, ""),
        ("g++ | 12.3 | main", 1, "g++ 12.2 (there is 12.3)"),
        ("", 0, "g++ 12.2 (there is none)"),  # of a part that only a later step asks for
    ],
)
def test_an_update_fails_if_a_mirror_has_only_other_versions(tmp_path, offered, code, says):
    lock = replace(LOCK, apt={"libc6": "2.36-9"}, apt_build={"g++": "12.2"})
    (tmp_path / "apt-preferences").write_text(locks.format_preferences(lock))
    for name, text in (("dpkg-query", "libc6 2.36-9"), ("apt-cache", offered)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    script = locks.SCRIPT.replace(f"{host.ROOT}/", f"{tmp_path}/")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run(["sh", "-c", script], env=path, check=False)
    assert (done.returncode, locks.parse_missing(done.stdout)) == (code, (says,) if says else ())


def test_an_image_that_is_not_as_locked_is_told():
    packages = {**LOCK.apt, "libc6": "2.36-10", "extra": "1"}
    debian = tuple(debian_package(name, version) for name, version in packages.items())
    found = Contents(debian=debian, pip=(PythonPackage(name="Horovod", version="0.28.1"),))
    assert locks.list_differences(LOCK, found) == (
        "apt extra: locked not at all, built 1",
        "apt libc6: locked 2.36-9, built 2.36-10",
        "pip pip: locked 23.0.1, built not at all",
    )


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


@pytest.mark.parametrize(
    ("mirrors", "expected"),
    [
        ({"bookworm": ONE, "trixie": "https://trixie"}, ONE),
        ({"a-security": SECURITY, "trixie": "https://trixie"}, "https://trixie"),
    ],
)
def test_a_build_takes_the_mirror_of_its_release_else_of_another(mirrors, expected, monkeypatch):
    monkeypatch.delenv(host.MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr("toolkit.hostsetup.apt.debian_mirrors", lambda: mirrors)
    assert host.debian_mirror("bookworm") == expected
    monkeypatch.setattr("toolkit.hostsetup.apt.debian_mirrors", dict)
    with pytest.raises(UsageError, match="no mirror of Debian is known"):
        host.debian_mirror("bookworm")


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
