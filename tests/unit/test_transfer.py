"""Copying an image: whole or not at all, here and on another machine, whatever fails on the way."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.readers import READERS, with_manifest
from tests.unit.samples import MANIFEST
from toolkit import shell
from toolkit.errors import CommandFailedError, ImageMissingError, ToolkitError, UsageError
from toolkit.images.registry import copies
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
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
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredImage:
    """An image with a manifest."""
    place = tmp_path / "images"
    place.mkdir()
    monkeypatch.setenv("TOOLKIT_IMAGES", str(place))
    (place / "x.sif").write_bytes(WHOLE)
    (place / "x.log").write_text("not copied")
    return store.find("x")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    found = tmp_path / "target"
    found.mkdir()
    return found


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make stand-ins for ssh, rsync and scp, whose other machine is this one.

    What the file that is returned holds makes them fail.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    state = tmp_path / "state"
    state.write_text("")
    last = 'for word; do :; done; to=${word#*:}; for word; do case $word in "$0") ;; *) from=$last; last=$word;; esac; done'
    half = 'head -c 100 "$from" > "$to"; echo "connection lost" >&2; exit 12'
    flip = 'printf x | dd of="$to" bs=1 seek=50 conv=notrunc 2>/dev/null'
    scripts = {
        "ssh": f'while [ "$1" = -o ]; do shift 2; done; shift; echo "$1" >> {state}.log; grep -q "no ssh" {state} && exit 255; sh -c "$1"',
        "rsync": f'{last}; grep -q half {state} && {{ {half}; }}; cp "$from" "$to"; grep -q flipped {state} && {flip}; exit 0',
    }
    scripts["scp"] = scripts["rsync"]
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return state


def listed(directory: Path) -> list[str]:
    """List the files of a directory that are no locks, which stay for ever."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".x.lock")


def test_an_image_is_copied_with_what_is_known_of_it(image: StoredImage, target: Path) -> None:
    progress = Quiet()
    assert copies.copy(image, str(target), progress, mode=0o640) == f"{target}/x.sif"
    assert listed(target) == ["x.sif"]
    assert store.find(str(target / "x.sif")).manifest == image.manifest
    assert stat.S_IMODE((target / "x.sif").stat().st_mode) == 0o640
    assert progress.steps == ["x.sif"]


@pytest.mark.parametrize("program", ["rsync", "scp"])
def test_an_image_is_sent_with_what_is_known_of_it(
    image: StoredImage, target: Path, machine: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program == "scp":
        real = shell.which
        monkeypatch.setattr(shell, "which", lambda name: None if name == "rsync" else real(name))
    copies.copy(image, f"login.site:{target}", Quiet())
    assert listed(target) == ["x.sif"]
    assert store.find(str(target / "x.sif")).manifest == image.manifest
    assert machine.read_text() == ""


@pytest.mark.parametrize("state", ["half", "flipped", "half, no ssh"])
def test_what_was_sent_in_part_does_not_stay(
    image: StoredImage, target: Path, machine: Path, state: str
) -> None:
    (target / "x.sif").write_bytes(b"from before")
    machine.write_text(state)
    with pytest.raises(CommandFailedError) as raised:
        copies.copy(image, f"login.site:{target}", Quiet())
    assert raised.value.place == f"login.site:{target}"
    assert (target / "x.sif").read_bytes() == b"from before"
    if "no ssh" not in state:  # nobody can tidy up on a machine that does not answer
        assert listed(target) == ["x.sif"]
    else:
        assert "rm -rf" in Path(f"{machine}.log").read_text()


@pytest.mark.parametrize("number", range(5))
def test_ctrl_c_leaves_nothing_behind(
    image: StoredImage, target: Path, machine: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each program that is run for it."""
    real, count = shell.run, iter(range(100))

    def run(*words: object, **options: object) -> object:
        if next(count) == number:
            real(*words, **options)  # type: ignore[arg-type]
            raise KeyboardInterrupt
        return real(*words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shell, "run", run)
    with pytest.raises(KeyboardInterrupt):
        copies.copy(image, f"login.site:{target}", Quiet())
    assert listed(target) in ([], ["x.sif"])
    assert machine.read_text() == ""


def test_a_disk_that_is_full_leaves_nothing_behind(
    image: StoredImage, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "x.sif").write_bytes(b"from before")
    real = shutil.copyfile

    def full(path: Path, to: Path) -> None:
        real(path, to)
        if path.suffix == ".sif":
            os.truncate(to, 100)
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ToolkitError) as raised:
        copies.copy(image, str(target), Quiet())
    assert raised.value.exit_code == 73
    assert listed(target) == ["x.sif"]
    assert (target / "x.sif").read_bytes() == b"from before"


def test_an_image_at_the_target_is_whole_at_every_moment(
    image: StoredImage, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_where_it_cannot_go_is_said(image: StoredImage, target: Path, machine: Path) -> None:
    with pytest.raises(ImageMissingError, match="does not exist"):
        copies.copy(image, str(target / "missing"), Quiet())
    with pytest.raises(UsageError):
        copies.copy(image, "-oProxyCommand=id:x", Quiet())
    assert machine.read_text() == ""
