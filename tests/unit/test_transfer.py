"""Copying an image: whole or not at all, here and on another machine, whatever fails on the way."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.readers import READERS, with_manifest
from tests.unit.samples import MANIFEST
from toolkit.errors import (
    CommandFailedError,
    ImageMissingError,
    NoSpaceError,
    UsageError,
    of_system,
)
from toolkit.images.registry import copies
from toolkit.images.store import store
from toolkit.model.base import to_json

WHOLE = with_manifest(READERS["sif"].seeds[0], to_json(MANIFEST).encode())


class Quiet:
    """Is told the steps, and keeps what was sent."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        del step, expected
        self.steps.append(detail.partition(",")[0])

    def end(self, outcome: str = "done") -> None:
        del outcome

    def say(self, name: str, text: str) -> None:
        del name, text


@pytest.fixture
def image(tmp_path, monkeypatch):
    """An image with a manifest."""
    place = tmp_path / "images"
    place.mkdir()
    monkeypatch.setenv("TOOLKIT_IMAGES", str(place))
    (place / "x.sif").write_bytes(WHOLE)
    (place / "x.log").write_text("not copied")
    return store.find("x")


@pytest.fixture
def target(tmp_path):
    found = tmp_path / "it's a site's $images"
    found.mkdir()
    return found


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a stand-in for ssh, whose other machine is this one.

    What the file that is returned holds makes it fail.
    """
    programs, state = tmp_path / "programs", tmp_path / "state"
    programs.mkdir()
    state.write_text("")
    script = f"""#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift
case $(cat {state}) in
    "no ssh") exit 255 ;;
    half) head -c 100 | sh -c "$1"; echo "connection lost" >&2; exit 255 ;;
    flipped) tr '\\001' x | sh -c "$1" ;;
    *) sh -c "$1" ;;
esac
"""
    (programs / "ssh").write_text(script)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return state


def listed(directory):
    """List the files of a directory that are no locks, which stay for ever."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".x.lock")


@pytest.mark.parametrize("host", ["", "login.site:"])
def test_an_image_is_copied_with_what_is_known_of_it(image, target, machine, host):
    """What was known of an older image of that name goes."""
    for name in (".x.note.json", "x.log", "x.y.json"):
        (target / name).touch()
    progress = Quiet()
    copied = copies.copy(image, f"{host}{target}", progress, mode=0o640)
    assert copied == f"{host}{target}/x.sif"
    assert listed(target) == ["x.log", "x.sif", "x.y.json"]
    assert store.find(str(target / "x.sif")).manifest == image.manifest
    assert stat.S_IMODE((target / "x.sif").stat().st_mode) == 0o640
    assert (progress.steps, machine.read_text()) == (["x.sif"], "")


@pytest.mark.parametrize("state", ["half", "flipped", "no ssh"])
def test_what_was_sent_in_part_does_not_stay(image, target, machine, state):
    (target / "x.sif").write_bytes(b"from before")
    machine.write_text(state)
    with pytest.raises(CommandFailedError, match="could not be sent") as raised:
        copies.copy(image, f"login.site:{target}", Quiet())
    assert raised.value.place == f"login.site:{target}"
    assert state != "flipped" or "differs from what was sent" in str(raised.value.details)
    assert (target / "x.sif").read_bytes() == b"from before"
    assert listed(target) == ["x.sif"]


def test_a_disk_that_is_full_leaves_nothing_behind(image, target, monkeypatch):
    (target / "x.sif").write_bytes(b"from before")
    real = shutil.copyfile

    def full(path: Path, to: Path) -> None:
        real(path, to)
        if to.suffix == ".sif":
            os.truncate(to, 100)
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space") as raised:
        copies.copy(image, str(target), Quiet())
    assert isinstance(of_system(raised.value), NoSpaceError)
    assert listed(target) == ["x.sif"]
    assert (target / "x.sif").read_bytes() == b"from before"


def test_an_image_at_the_target_is_whole_at_every_moment(image, target, monkeypatch):
    """Between any two steps a reader finds the old image or the new one with its manifest."""
    old = bytearray(WHOLE)
    old[48:64] = bytes(16)
    (target / "x.sif").write_bytes(bytes(old))
    seen: list[str] = []
    real = Path.replace

    def replace(path: Path, to: Path) -> Path:
        moved = real(path, to)
        manifest = store.find(str(target / "x.sif")).manifest
        seen.append(manifest.sif_id if manifest else "none")
        return moved

    monkeypatch.setattr(Path, "replace", replace)
    copies.copy(image, str(target), Quiet())
    new = WHOLE[48:64].hex()
    assert seen == [new]
    assert listed(target) == ["x.sif"]


def test_where_it_cannot_go_is_said(image, target, machine):
    with pytest.raises(ImageMissingError, match="does not exist"):
        copies.copy(image, str(target / "missing"), Quiet())
    with pytest.raises(UsageError):
        copies.copy(image, "-oProxyCommand=id:x", Quiet())
    assert machine.read_text() == ""
