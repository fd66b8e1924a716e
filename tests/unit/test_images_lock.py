"""Locks: their file, what of a recipe has changed since, and what a locked build is lent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.hostile import HOSTILE
from toolkit.errors import BuildError, ConfigError
from toolkit.images.host.host_mounts import Bind, HostConfig
from toolkit.images.lockfile import apply as locks
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Debootstrap
from toolkit.images.recipe.block import BlockOutput
from toolkit.images.recipe.lock import Lock, Pinned, to_toml
from toolkit.images.store.contents import Contents, DebianPackage, PythonPackage
from toolkit.model.base import from_toml
from toolkit.model.image import BaseImage

LOCK = Lock(
    name="small",
    recipe_hash="ab" * 32,
    epoch=1700000000,
    base=BaseImage(reference="debian bookworm"),
    parts={"base": "1", "pip": "2"},
    tools={"apptainer": "1.4.5"},
    apt={"libc6": "2.36-9", "python3": "3.11.2-1+b1"},
    apt_build={"g++": "12.2", "python3-pip-whl": "23.0.1+dfsg-1"},
    pip=(
        Pinned(
            name="horovod",
            version="0.28.1",
            file="horovod-0.28.1.tar.gz",
            sha256="cd" * 32,
            source=True,
        ),
        Pinned(name="pip", version="23.0.1", file="pip-23.0.1-py3-none-any.whl", sha256="ef" * 32),
    ),
    pip_build=(
        Pinned(
            name="wheel", version="0.48.0", file="wheel-0.48.0-py3-none-any.whl", sha256="01" * 32
        ),
    ),
)


def test_a_lock_is_written_and_read_again() -> None:
    text = to_toml(LOCK)
    assert from_toml(text, Lock) == LOCK
    assert to_toml(from_toml(text, Lock)) == text
    assert (
        '    { name = "horovod", version = "0.28.1", file = "horovod-0.28.1.tar.gz", sha256 = '
        in text
    )
    assert len(LOCK.files) == 3


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_breaks_the_file_of_a_lock(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # no file can hold it
    odd = msgspec.structs.replace(
        LOCK, name=text, apt={text: text}, pip=(Pinned(name=text, version=text),)
    )
    assert from_toml(to_toml(odd), Lock) == odd


def resolved(*outputs: BlockOutput) -> object:
    """What ``parts`` and ``changes`` look at of a resolved recipe."""

    class Stand:
        base = Debootstrap(release="bookworm")

    stand = Stand()
    stand.outputs = outputs  # type: ignore[attr-defined]
    return stand


def test_what_has_changed_of_a_recipe_is_named() -> None:
    pip = BlockOutput(name="pip", detail="numpy 2.4.6", lines=("pip install numpy==2.4.6",))
    apt = BlockOutput(name="apt", packages=("git",))
    was = resolved(apt, pip)
    lock = msgspec.structs.replace(LOCK, parts=locks.hash_parts(was))  # type: ignore[arg-type]
    newer = msgspec.structs.replace(pip, detail="numpy 2.5.0", lines=("pip install numpy==2.5.0",))
    assert locks.list_changes(lock, was, LOCK.recipe_hash) == ()  # type: ignore[arg-type]
    changes = locks.list_changes(lock, resolved(apt, newer), "other")  # type: ignore[arg-type]
    assert changes == ("pip has changed: numpy 2.5.0",)
    extra = BlockOutput(name="more", detail="1 command", lines=("true",))
    changes = locks.list_changes(lock, resolved(pip, extra), "other")  # type: ignore[arg-type]
    assert changes == ("more is new: 1 command", "apt is gone")
    changes = locks.list_changes(lock, was, "other")  # type: ignore[arg-type]
    assert changes == ("checks, labels, or how definitions are written",)
    said = msgspec.structs.replace(pip, detail="numpy, as it is called")
    assert locks.hash_parts(resolved(apt, said)) == lock.parts  # type: ignore[arg-type]


def test_a_locked_build_is_lent_the_locked_files_and_nothing_else() -> None:
    loan = HostConfig(
        files={
            "pip.conf": "[global]\nindex-url = https://user:secret@index.example/simple\n",
            "apt.conf": 'Acquire::http::Proxy "http://p";\n',
        },
        binds=(
            Bind(source="/opt/wheels", target="find-links/0"),
            Bind(source="/etc/ssl/ca.crt", target="ca-certificates.crt"),
        ),
    )
    lent = locks.locked_host_config(loan, LOCK, "/somewhere/locked")
    assert (
        lent.files["pip.conf"] == "[global]\nno-index = true\nfind-links = /mnt/find-links/locked\n"
    )
    assert lent.files["apt.conf"].startswith('Acquire::http::Proxy "http://p";\n')
    assert 'Dir::Etc::preferences "/mnt/apt-preferences";' in lent.files["apt.conf"]
    assert "Package: g++\nPin: version 12.2\nPin-Priority: 1001\n" in lent.files["apt-preferences"]
    assert lent.binds == (
        Bind(source="/etc/ssl/ca.crt", target="ca-certificates.crt"),
        Bind(source="/somewhere/locked", target="find-links/locked"),
    )


def test_what_a_build_compiles_by_is_locked_too() -> None:
    output = BlockOutput(
        name="horovod",
        build_lines=(
            "pip install --no-compile setuptools==84.2.1 wheel==0.48.0",
            "echo a==1",
            "pip download horovod==0.28.1",
            "cd /src && CC=gcc python3 -m pip install cmake==4.0.2",
            "pip3 install ninja==1.13.0",
            "pipx install b==1",
        ),
    )
    found = locks.build_requirements(resolved(output))  # type: ignore[arg-type]
    assert found == {
        "setuptools": "84.2.1",
        "wheel": "0.48.0",
        "horovod": "0.28.1",
        "cmake": "4.0.2",
        "ninja": "1.13.0",
    }


def test_what_debian_brought_of_python_is_from_no_index() -> None:
    lock = locks.with_build_packages(LOCK, LOCK.apt_build)
    assert [one.name for one in lock.pip if not one.file] == ["pip"]


def ask_mirror(tmp_path: Path, *, installed: str, offered: str) -> subprocess.CompletedProcess[str]:
    """The script that asks the mirror, with stand-ins for dpkg and apt that say what they are told to."""
    for name, said in (("dpkg-query", installed), ("apt-cache", offered)):
        (tmp_path / f"{name}.said").write_text(said)
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.said\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "apt-preferences").write_text(locks.format_preferences(LOCK))
    script = locks.SCRIPT.replace("/mnt/apt-preferences", str(tmp_path / "apt-preferences"))
    path = f"{tmp_path}:/usr/bin:/bin"
    return subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=False
    )


def test_the_mirror_is_asked_for_what_is_not_in_the_image(tmp_path: Path) -> None:
    installed = "libc6 2.36-9\nlibc6:amd64 2.36-9\nother 1\n"
    offered = "python3 | 3.11.2-1+b1 | http://m bookworm/main\n g++ | 12.2 | http://m\npython3-pip-whl | 23.0.1+dfsg-1 | http://m\n"
    done = ask_mirror(tmp_path, installed=installed, offered=offered)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_mirror_no_longer_has_is_named(tmp_path: Path) -> None:
    offered = (
        "libc6 | 2.36-10 | http://m\npython3 | 3.11.2-1+b1 | http://m\ng++ | 12.2 | http://m\n"
    )
    done = ask_mirror(tmp_path, installed="other 1\n", offered=offered)
    assert done.returncode == 1
    assert sorted(locks.parse_missing(done.stdout)) == [
        "libc6 2.36-9 (there is 2.36-10)",
        "python3-pip-whl 23.0.1+dfsg-1 (there is none)",
    ]


def test_an_image_that_is_not_as_locked_is_told() -> None:
    debian = tuple(
        DebianPackage(
            name=name, version=version, architecture="amd64", source=name, source_version=version
        )
        for name, version in {**LOCK.apt, "libc6": "2.36-10", "extra": "1"}.items()
    )
    found = Contents(debian=debian, pip=(PythonPackage(name="Horovod", version="0.28.1"),))
    assert locks.list_differences(LOCK, found) == (
        "apt extra: locked not at all, built 1",
        "apt libc6: locked 2.36-9, built 2.36-10",
        "pip pip: locked 23.0.1, built not at all",
    )


def test_labels_do_not_say_when_a_locked_image_was_built() -> None:
    text = "Bootstrap: x\n\n%post\n    true\n\n%environment\n    export A=1\n\n%labels\n    toolkit.recipe small\n\n%test\n    true\n"
    locked = locks.locked_definition(text, LOCK)
    assert (
        "%labels\n    org.label-schema.build-date 2023-11-14T22:13:20+00:00\n    toolkit.recipe small\n"
        in locked
    )
    added = locked.replace("    org.label-schema.build-date 2023-11-14T22:13:20+00:00\n", "")
    start, end = "Bootstrap: x\n\n%post\n    true\n", text.partition("    true")[2]
    assert added.startswith(f"{start}\n    if command -v python3")
    assert added.endswith(f"    fi{end}")


def test_the_last_stage_of_a_locked_definition_writes_byte_code_again() -> None:
    text = library.render(library.load("pytorch_cpu"))
    locked = locks.locked_definition(text, LOCK)
    before, _, after = locked.partition("/mnt/byte-code.py")
    assert after.count("%post") == 0
    assert before.count("%post") == text.count("\n%post\n") == 2
    assert after.startswith(" /tmp/byte-code\n    fi\n\n%environment\n")
    assert (
        locks.locked_host_config(HostConfig(), LOCK, "/files")
        .files["byte-code.py"]
        .startswith("import importlib.util")
    )


def test_a_lock_that_is_missing_broken_or_of_another_time_is_refused(tmp_path: Path) -> None:
    from toolkit.images.lockfile import files as locking
    from toolkit.images.recipe import library

    recipe = tmp_path / "small.toml"
    recipe.write_text('summary = "s"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n')
    known = library.load(str(recipe))
    path = locking.lock_path(str(recipe))
    assert path == tmp_path / "small.lock"
    with pytest.raises(ConfigError, match="has no lock"):
        locking.read(path, known)
    path.write_text(to_toml(LOCK).replace("epoch", "epoc"))
    with pytest.raises(ConfigError, match="epoc"):
        locking.read(path, known)
    path.write_text(to_toml(LOCK))
    with pytest.raises(ConfigError, match="not the one that was locked") as caught:
        locking.read(path, known)
    assert "pip is gone" in caught.value.details
    path.write_text(to_toml(msgspec.structs.replace(LOCK, recipe_hash=library.hash_recipe(known))))
    assert locking.read(path, known).name == "small"
    path.write_text(to_toml(msgspec.structs.replace(LOCK, format=99)))
    with pytest.raises(ConfigError, match="format 99"):
        locking.read(path, known)


def test_files_of_a_lock_are_brought_by_their_hash_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    from toolkit.images.host import host_config as host
    from toolkit.images.lockfile import files as locking
    from toolkit.images.recipe import library

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "a-1-py3-none-any.whl").write_bytes(b"right")
    settings = {"no-index": "true", "find-links": str(wheels)}
    monkeypatch.setattr(host, "read_pip_settings", lambda: settings)
    monkeypatch.setattr(host, "collect_host_config", lambda: HostConfig())
    recipe = tmp_path / "small.toml"
    recipe.write_text('summary = "s"\n[base]\nkind = "debootstrap"\nrelease = "bookworm"\n')
    known = library.load(str(recipe))
    right = Pinned(
        name="a",
        version="1",
        file="a-1-py3-none-any.whl",
        sha256=hashlib.sha256(b"right").hexdigest(),
    )
    lock = msgspec.structs.replace(LOCK, pip=(right,), pip_build=())
    locking.fetch_files(lock, known, tmp_path / "images", tmp_path / "first")
    assert (tmp_path / "first/a-1-py3-none-any.whl").read_bytes() == b"right"
    kept = next((tmp_path / "images").rglob("*.whl"))
    assert (tmp_path / "first/a-1-py3-none-any.whl").samefile(kept), "no second copy on the disk"
    # What others could still change is copied.
    kept.chmod(0o664)
    locking.fetch_files(lock, known, tmp_path / "images", tmp_path / "shared")
    assert not (tmp_path / "shared/a-1-py3-none-any.whl").samefile(kept)
    # It is kept: the index may lose it, or have another under its name.
    (wheels / "a-1-py3-none-any.whl").write_bytes(b"wrong")
    locking.fetch_files(lock, known, tmp_path / "images", tmp_path / "second")
    assert (tmp_path / "second/a-1-py3-none-any.whl").read_bytes() == b"right"
    with pytest.raises(BuildError, match="no package index has 1 file") as caught:
        locking.fetch_files(lock, known, tmp_path / "others", tmp_path / "third")
    assert caught.value.details[0].startswith("a 1: a-1-py3-none-any.whl (sha256 ")
    # What is kept is not believed either.
    kept.write_bytes(b"spoilt")
    (wheels / "a-1-py3-none-any.whl").write_bytes(b"right")
    locking.fetch_files(lock, known, tmp_path / "images", tmp_path / "fourth")
    assert (tmp_path / "fourth/a-1-py3-none-any.whl").read_bytes() == b"right"
