"""Copying an image: whole or not at all, here and on another machine, whatever fails on the way."""

from __future__ import annotations

import errno
import shutil
import stat
from pathlib import Path

import pytest

from tests.progress import Silent
from tests.unit.test_images_store import OTHER, manifest, put
from toolkit.errors import (
    CommandFailedError,
    ImageMissingError,
    NoSpaceError,
    UsageError,
    of_system,
)
from toolkit.images.registry import copies
from toolkit.images.store import store


@pytest.fixture
def image(tmp_path, monkeypatch):
    """An image with a manifest."""
    place = tmp_path / "images"
    place.mkdir()
    monkeypatch.setenv("TOOLKIT_IMAGES", str(place))
    put(place, "x")
    (place / "x.log").write_text("not copied")
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
