"""The store: only whole images are found and copied, whatever a crash has left, and what is not found says what is near."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.progress import Silent
from toolkit.errors import (
    CommandFailedError,
    ImageMissingError,
    NoSpaceError,
    UnknownImageError,
    UsageError,
    of_system,
)
from toolkit.images.registry import copies
from toolkit.images.sif import header as sif
from toolkit.images.store import store, usage
from toolkit.model.base import to_json
from toolkit.model.image import Manifest

ID, OTHER = "0123456789abcdef" * 2, "f" * 32


def fake_sif(
    path: Path, sif_id: str = ID, *, size: int = 4096, cut: int = 0, inside: Manifest | None = None
) -> Path:
    """A file with the head of a SIF, and a manifest in it if one is given."""
    text = to_json(replace(inside, sif_id="", size=0)).encode() if inside else b""
    head = bytearray(sif.HEADER_SIZE)
    head[32:42] = b"SIF_MAGIC\0"
    head[48:64] = bytes.fromhex(sif_id)
    struct.pack_into("<3q", head, 80, 0, int(bool(text)), sif.HEADER_SIZE)
    struct.pack_into("<qq", head, 112, 1024, size - 1024)
    place, facts = (2048, len(text), len(text)), (0, 0, 0, 0, store.MANIFEST.encode(), b"")
    head += sif._DESCRIPTOR.pack(sif.JSON, True, 1, sif._GROUP_MASK + 1, 0, *place, *facts)
    data = bytes(head).ljust(2048, b"\0") + text
    path.write_bytes(data.ljust(size, b"\0")[: size - cut])
    return path


def manifest(name, sif_id=ID, size=4096):
    return Manifest(
        name=name,
        sif_id=sif_id,
        size=size,
        recipe_hash="r",
        built="2026-01-01T00:00:00+00:00",
        mpi=("pmix",),
    )


@pytest.fixture
def images(tmp_path, monkeypatch):
    directory = tmp_path / "images"
    directory.mkdir()
    monkeypatch.setenv("TOOLKIT_IMAGES", str(directory))
    monkeypatch.chdir(tmp_path)
    return directory


def put(images, name="pytorch_cpu", sif_id=ID):
    return fake_sif(images / f"{name}.sif", sif_id, inside=manifest(name))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("pytorch_cpu", "images/pytorch_cpu.sif"),
        ("images/pytorch_cpu.sif", "images/pytorch_cpu.sif"),
        ("pytorch:25.12-py3.sif", "pytorch:25.12-py3.sif"),
        ("./my image.sif", "my image.sif"),
        ("theirs", "site/theirs.sif"),  # directories of the site come after one's own
    ],
)
def test_an_image_is_found_by_name_and_by_path(images, tmp_path, name, path):
    put(images)
    (tmp_path / "site").mkdir()
    for other in ("pytorch:25.12-py3", "my image", "site/theirs", "site/pytorch_cpu"):
        fake_sif(tmp_path / f"{other}.sif", OTHER)
    found = store.find(name, (tmp_path / "missing", tmp_path / "site"))
    assert found.path == str(tmp_path / path)
    assert found.manifest == (manifest("pytorch_cpu") if "pytorch_cpu" in name else None)


@pytest.mark.parametrize(
    ("name", "close", "step"),
    [
        ("pytorch_cpuu", "pytorch_cpu", "toolkit image list"),
        ("mine_2025", "mine_2024", "toolkit image list"),
        ("theirs_2024", "theirs_2023", "toolkit image list"),
        ("python:3.11", None, "docker://python:3.11 is fetched"),
        ("dockr://python:3.11", None, "toolkit image list"),
        *((name, None, "") for name in ("missing/x.sif", "/missing.sif", "../x", "", ".", "/")),
        *((name, None, "") for name in ("x" * 300, "a\0b", "~nobody-at-all/x")),
    ],
)
def test_an_unknown_image_names_the_nearest_of_all(images, tmp_path, name, close, step):
    put(images, "mine_2024")
    fake_sif(tmp_path / "theirs_2023.sif")
    with pytest.raises((UnknownImageError, ImageMissingError)) as caught:
        store.find(name, (tmp_path,))
    assert close in (None, getattr(caught.value, "close", None))
    assert step in (caught.value.next_step or "")
    assert ("docker://" in (caught.value.next_step or "")) == ("docker://" in step)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not built yet"),
        (b"\0" * 5000, "not an image"),
        (b"cut", "cut off"),
        (b"bare", "not whole"),  # without a manifest
    ],
)
def test_what_is_no_whole_image_is_refused(images, data, reason):
    path = images / "pytorch_cpu.sif"
    if data in (b"cut", b"bare"):
        fake_sif(path, cut=int(data == b"cut"))
    elif data:
        path.write_bytes(data)
    with pytest.raises(ImageMissingError, match=reason) as caught:
        store.find("pytorch_cpu")
    assert data or caught.value.next_step == "toolkit image build pytorch_cpu"


def test_publishing_replaces_the_file_and_all_that_was_known_of_it(images, tmp_path):
    put(images, "x", OTHER)
    for name in (".x.note.json", "x.json", "x.log", ".x.y.note.json"):
        (images / name).touch()
    built = put(tmp_path, "x")
    assert store.publish(built, images, "x") == images / "x.sif"
    assert store.find("x").manifest == manifest("x")
    left = [".x.y.note.json", "x.json", "x.log", "x.sif"]
    assert sorted(file.name for file in images.iterdir()) == left
    assert not built.exists()


NOTED = replace(manifest("x"), origin="docker://a", frameworks={"torch": "9"})


@pytest.mark.parametrize(
    ("owner", "is_of_it", "is_believed"),
    [(0, True, True), (65534, True, True), (1234, True, False), (0, False, False)],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_note_on_an_image_is_of_this_file_and_of_its_owner_this_user_or_root(
    images, owner, is_of_it, is_believed
):
    """And it says nothing of what a signature is of, such as what can be imported."""
    os.chown(put(images, "x"), 65534, 65534)
    note = images / ".x.note.json"
    note.write_text(to_json(NOTED if is_of_it else replace(NOTED, sif_id=OTHER)))
    os.chown(note, owner, owner)
    expected = replace(manifest("x"), origin="docker://a") if is_believed else manifest("x")
    assert store.find("x").manifest == expected
    note.symlink_to(note.rename(images / "note"))
    assert store.find("x").manifest == manifest("x"), "no link is followed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_is_found_of_another_users_image_is_not_noted(images, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    os.chown(put(site, "x"), 65534, 65534)
    image = store.find("x", [site])
    store.update_manifest(image, lambda known: replace(known, origin="docker://a"), Silent())
    assert list(images.iterdir()) == []
    assert [path.name for path in site.glob(".*.json")] == []


RUN, LONG = Path("/runs/x-0001"), Path("/" + "a" * 300)


def link_directory(directory, own):
    directory.rename(directory.with_name("away"))
    (own / "x").mkdir(exist_ok=True)
    directory.symlink_to(own)


# What another user can put where the notes on an image's use are, or where the next one will be.
PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a link for the next note": lambda notes, own: (notes / usage._name(RUN)).symlink_to(own / "a"),
    "a link to nothing": lambda notes, own: (notes / usage._name(RUN)).symlink_to(own / "new"),
    "a link for the notes": link_directory,
    "a link for all notes": lambda notes, own: link_directory(notes.parent, own),
    "a pipe": lambda notes, _: os.mkfifo(notes / "a"),
    "a directory": lambda notes, _: (notes / "a").mkdir(),
    "a long path": lambda notes, _: (notes / "a").write_text(f"{LONG}\0007\0local"),
    "no path": lambda notes, _: (notes / "a").write_text("a\0007\0local"),
    "no number": lambda notes, _: (notes / "a").write_text("/a\000-7\0local"),
    "no cluster": lambda notes, _: (notes / "a").write_text("/a\0007\000../../evil"),
    "no text": lambda notes, _: (notes / "a").write_bytes(b"/\xff"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_notes_on_the_use_of_an_image_lead_nowhere_else(planted, tmp_path):
    image, own = tmp_path / "images/x.sif", tmp_path / "own"
    own.mkdir()
    (own / "a").write_text("thesis")
    (tmp_path / "images/.used/x").mkdir(parents=True)
    image.touch()
    PLANTED[planted](tmp_path / "images/.used/x", own)
    before = {path: path.stat().st_mtime_ns for path in own.rglob("*")}

    def holds(use: usage.Use) -> bool:
        assert (use.job_id, use.cluster) == (7, "local")
        return (use.run / "plan.json").is_file()

    assert set(usage.unfinished(image, holds)) <= {LONG}
    usage.note(image, usage.Use(RUN, 7, "local"))
    assert usage.last_used(image) > 0
    assert set(usage.unfinished(image, holds)) <= {LONG}
    usage.forget(image)
    assert {path: path.stat().st_mtime_ns for path in own.rglob("*")} == before
    assert (own / "a").read_text() == "thesis"


# Copying an image: whole or not at all, here and on another machine, whatever fails on the way.
@pytest.fixture
def image(images):
    put(images, "x")
    (images / "x.log").write_text("not copied")
    return store.find("x")


@pytest.fixture
def target(tmp_path):
    """A directory with an older image of that name, and files of other images."""
    place = tmp_path / "it's a site's $images"
    place.mkdir()
    put(place, "x", OTHER)
    for name in (".x.note.json", "x.log", "x.y.json"):
        (place / name).touch()
    return place


def left(target: Path) -> list[str]:
    """List the files of a directory that are no locks, which stay for ever."""
    return sorted(path.name for path in target.iterdir() if path.name != ".x.lock")


BEFORE = [".x.note.json", "x.log", "x.sif", "x.y.json"]
# ssh, whose other machine is this one; what a file holds makes it fail.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift
case $(cat {state}) in
    "no ssh") exit 255 ;;
    half) head -c 100 | sh -c "$1"; echo "connection lost" >&2; exit 255 ;;
    flipped) tr '\\001' x | sh -c "$1" ;;
    *) sh -c "$1" ;;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    programs, state = tmp_path / "programs", tmp_path / "state"
    programs.mkdir()
    state.write_text("")
    (programs / "ssh").write_text(SSH.format(state=state))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return state


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("host", ["", "login.site:"])
def test_an_image_is_copied_and_what_was_known_of_an_older_one_goes(image, target, host):
    copied = copies.copy(image, f"{host}{target}", Silent(), mode=0o640)
    assert copied == f"{host}{target}/x.sif"
    assert left(target) == BEFORE[1:]
    assert store.find(str(target / "x.sif")).manifest == image.manifest
    assert stat.S_IMODE((target / "x.sif").stat().st_mode) == 0o640


@pytest.mark.parametrize("state", ["half", "flipped", "no ssh"])
def test_what_was_sent_in_part_does_not_stay(image, target, machine, state):
    machine.write_text(state)
    with pytest.raises(CommandFailedError, match="could not be sent") as raised:
        copies.copy(image, f"login.site:{target}", Silent())
    assert raised.value.place == f"login.site:{target}"
    assert state != "flipped" or "differs from what was sent" in str(raised.value.details)
    assert store.find(str(target / "x.sif")).manifest == manifest("x", OTHER)
    assert left(target) == BEFORE


def test_a_disk_that_is_full_is_named_and_leaves_nothing_behind(image, target, monkeypatch):
    def full(source: Path, to: Path) -> None:
        to.write_bytes(source.read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space") as raised:
        copies.copy(image, str(target), Silent())
    assert isinstance(of_system(raised.value), NoSpaceError)
    assert raised.value.filename == str(target)
    assert store.find(str(target / "x.sif")).manifest == manifest("x", OTHER)
    assert left(target) == BEFORE


def test_a_copy_is_of_the_image_that_was_there_when_it_began(image, target, tmp_path):
    class Publishing(Silent):
        def begin(self, *_: object) -> None:
            put(tmp_path, "x", OTHER).replace(image.path)

    copies.copy(image, str(target), Publishing())
    assert store.find(str(target / "x.sif")).manifest == image.manifest


def test_where_it_cannot_go_is_said(image, target):
    with pytest.raises(ImageMissingError, match="does not exist"):
        copies.copy(image, str(target / "missing"), Silent())
    with pytest.raises(UsageError):
        copies.copy(image, "-oProxyCommand=id:x", Silent())
