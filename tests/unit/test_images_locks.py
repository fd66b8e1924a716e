"""The locks of images: whoever changes an image holds its lock, which is never deleted."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.faults.steps import kill_at_each
from tests.progress import Silent
from tests.unit.test_images_store import ID, OTHER, fake_sif, manifest, put
from toolkit.errors import BusyError, ForbiddenError, ImageMissingError
from toolkit.images.host import mutex, workspace
from toolkit.images.host.mutex import hold_image
from toolkit.images.registry import copies
from toolkit.images.store import prune, store, usage
from toolkit.images.store.contents import Contents
from toolkit.images.verify.case import ImageCase
from toolkit.images.verify.verdicts import save
from toolkit.model.base import to_json
from toolkit.model.image import Python, Verdict

PYTHON = Python(path="/usr/bin/python3", version="3.11.2", modules=("torch",))
PASSED = (Verdict(name="labels", outcome="passed", detail="", when="now"),)


@pytest.fixture
def images(tmp_path, monkeypatch):
    directory = tmp_path / "images"
    directory.mkdir()
    monkeypatch.setenv("TOOLKIT_IMAGES", str(directory))
    monkeypatch.delenv("TOOLKIT_BUILD_TMP", raising=False)
    put(directory, "x")
    return directory


class Waiting(Silent):
    """A holder of the lock of ``x``, which does something and lets go as soon as another waits."""

    def __init__(self, images: Path, then: Callable[[], object] = bool) -> None:
        self.handle = os.open(images / ".x.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        self.then = then
        self.lines: list[str] = []

    def say(self, subject: str, text: str) -> None:
        self.lines.append(f"{subject} {text}")
        self.then()
        os.close(self.handle)


def test_nobody_removes_what_another_works_on(images):
    inode = os.fstat(Waiting(images).handle).st_ino
    (images / "x.failed.log").touch()
    before = sorted(images.iterdir())
    with pytest.raises(BusyError, match="the image x is being used by another process"):
        prune.remove(images / "x.sif", force=True, holds=bool)
    (kept,) = prune.prune(images, older_than=0.0, unused_for=None, holds=bool)
    assert "used by another process" in kept.reason_to_keep
    assert sorted(images.iterdir()) == before
    assert (images / ".x.lock").stat().st_ino == inode


@pytest.mark.parametrize("way", ["remove", "prune"])
def test_the_lock_of_a_removed_image_stays(images, way):
    with hold_image(images / "x.sif", "built"):
        inode = (images / ".x.lock").stat().st_ino
    usage.note(images / "x.sif", usage.Use(images / "gone"))
    if way == "remove":
        assert prune.remove(images / "x.sif", force=True, holds=bool) == 4096
        with pytest.raises(ImageMissingError):
            prune.remove(images / "x.sif", holds=bool)
    else:
        prune.prune(images, older_than=0.0, unused_for=None, holds=lambda _: False)
    assert [path for path in images.rglob("*") if path.is_file()] == [images / ".x.lock"]
    assert (images / ".x.lock").stat().st_ino == inode


def test_an_image_that_is_built_while_prune_looks_is_judged_again(images, monkeypatch):
    """Between the look at its age and the lock, another build of it ends."""
    old = time.time() - 100 * 86400
    os.utime(images / "x.sif", (old, old))

    def late(image: Path, action: str) -> AbstractContextManager[None]:
        fake_sif(images / "new.part", OTHER, inside=manifest("x"))
        store.publish(images / "new.part", images, "x")
        return hold_image(image, action)

    monkeypatch.setattr("toolkit.images.store.prune.hold_image", late)
    assert prune.prune(images, older_than=86400.0, unused_for=None, holds=bool) == ()
    assert store.find("x").manifest == manifest("x", OTHER)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_verdicts_are_added_to_what_another_has_written_to_the_verified_image(
    images, tmp_path, is_replaced
):
    changed = replace(manifest("x"), origin="docker://a", pythons=())

    def write() -> None:
        if is_replaced:
            store.publish(fake_sif(tmp_path / "new", OTHER, inside=manifest("x")), images, "x")
        else:
            (images / ".x.note.json").write_text(to_json(changed))

    waiting = Waiting(images, write)
    case = ImageCase(store.find("x"))
    case.contents = Contents(pythons=(PYTHON,), programs=("bash",))
    save(store.find("x"), PASSED, waiting, case)
    assert waiting.lines == ["waiting x is being used by another process"]
    found = replace(changed, verified=PASSED, pythons=(PYTHON,), programs=("bash",))
    expected = manifest("x", OTHER) if is_replaced else found
    assert store.find("x").manifest == expected


def test_a_lock_tells_who_holds_it(images, tmp_path):
    held = f"x is being built by process {os.getpid()} on "
    with (
        hold_image(images / "x.sif", "built"),
        pytest.raises(BusyError, match=held),
        hold_image(images / "x.sif", "signed"),
    ):
        pass
    there = tmp_path / "there"
    there.mkdir()
    waiting = Waiting(there)  # a copy waits for the image of its name there
    copies.copy(store.find("x"), str(there), waiting)
    assert len(waiting.lines) == 1
    assert store.find(str(there / "x.sif")).manifest == manifest("x")


def test_a_directory_that_is_not_writable_is_named(images, monkeypatch):
    def closed(_: Path, flags: int, _mode: int = 0) -> int:
        refused = PermissionError(errno.EACCES, "Permission denied")
        raise refused if flags & os.O_CREAT else FileNotFoundError(errno.ENOENT, "No such file")

    monkeypatch.setattr(os, "access", lambda *_: False)
    said = f"{images} cannot be used: Permission denied"
    with pytest.raises(ForbiddenError, match=said):
        prune.prune(images, older_than=None, unused_for=None, holds=bool)
    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(ForbiddenError, match=said):
        mutex.open_lock(images / ".y.lock")


NO_LOCKS = {
    "a directory": lambda lock, _: lock.mkdir(),
    "a link": lambda lock, target: lock.symlink_to(target),
    "a circle": lambda lock, _: lock.symlink_to(lock),
    "a pipe": lambda lock, _: os.mkfifo(lock),
    "a name of another file": lambda lock, target: lock.hardlink_to(target),
}


@pytest.mark.parametrize("kind", NO_LOCKS)
def test_a_lock_that_is_no_file_is_neither_waited_for_nor_written(kind, images):
    (images / "target").write_text("precious")
    NO_LOCKS[kind](images / ".x.lock", images / "target")
    with pytest.raises(ForbiddenError), hold_image(images / "x.sif", "built"):
        pass
    assert (images / "target").read_text() == "precious"


KILLED = {
    "remove": "prune.remove(images / 'x.sif', force=True, holds=bool)",
    "prune": "prune.prune(images, older_than=0.0, unused_for=None, holds=bool)",
    **dict.fromkeys(
        ("replace", "first"),
        """\
with hold_image(images / 'x.sif', 'pulled'):
    store.publish(Path(place) / 'work', images, 'x', manifest('x', OTHER))""",
    ),
}
ACTION = """\
from pathlib import Path
from tests.unit.test_images_store import OTHER, manifest
from toolkit.images.host.mutex import hold_image
from toolkit.images.store import prune, store
images = Path(place) / "images"
"""


@pytest.mark.parametrize("action", KILLED)
def test_a_kill_leaves_the_old_image_or_the_new_one_and_nothing_else(action, tmp_path):
    def prepare(place: Path) -> None:
        (place / "images").mkdir()
        if action != "first":
            put(place / "images", "x")
        for ending in ("log", "failed.log"):
            (place / f"images/x.{ending}").touch()
        fake_sif(place / "work", OTHER, inside=manifest("x"))
        (place / "images/.x.lock").touch()

    seen = set()
    for killed in kill_at_each(prepare, ACTION + KILLED[action], tmp_path):
        images = killed.place / "images"
        lock = (images / ".x.lock").stat().st_ino
        sif_id = ""
        if (images / "x.sif").exists():
            found = store.find(str(images / "x.sif")).manifest
            assert found, killed
            sif_id = found.sif_id
        after = "" if action in ("remove", "prune") else OTHER
        assert sif_id in {"" if action == "first" else ID, after}, killed
        assert action in ("remove", "prune") or killed.unsynced == ()
        seen.add(sif_id)
        assert not killed.ended or sif_id == after
        prune.prune(images, older_than=None, unused_for=None, holds=bool)
        left = {path.name for path in images.iterdir() if path.name != ".used"}
        expected = {"x.sif", "x.log"} if sif_id else set()
        maybe = {".x.note.json"} if sif_id else set()
        assert left - maybe - {"x.failed.log"} == expected | {".x.lock"}, killed
        assert (images / ".x.lock").stat().st_ino == lock
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["x", "a[b]c*"])
def test_prune_tidies_up_after_a_kill_and_touches_nothing_of_others(
    images, tmp_path, monkeypatch, name
):
    """Of names without a lock nothing is ours: a directory of images may hold a user's own files."""
    others = {"y.json", "y.log", "..y.note.json.abcd1234", "x.y.z.json", ".y.ab.elsewhere.json"}
    for other in others:
        (images / other).touch()
    gone = (f"{name}.log", f".{name}.note.json")
    halves = (f"..{name}.note.json.abcd_123",)
    for each in (*gone, *halves, f".{name}.lock"):
        (images / each).touch()
    (images / f"{name}.sif").unlink(missing_ok=True)
    scratch = tmp_path / "scratch"
    monkeypatch.setenv("TOOLKIT_BUILD_TMP", str(scratch))
    dead = [parent / f"{workspace.own_prefix()}dead" for parent in (images, scratch)]
    for directory in dead:
        directory.mkdir(parents=True)
        (directory / workspace.MARKER).touch()
    prune.prune(images, older_than=None, unused_for=None, holds=bool, dry_run=True)
    assert all(directory.exists() for directory in dead)
    prune.prune(images, older_than=None, unused_for=None, holds=bool)
    assert list(scratch.iterdir()) == []
    kept = {"x.sif"} if name != "x" else set()
    assert {path.name for path in images.iterdir()} == others | kept | {f".{name}.lock"}


def test_locks_are_for_the_group_that_may_write_to_the_directory(tmp_path):
    before = os.umask(0o077)
    try:
        for mode, expected in ((0o2770, 0o660), (0o700, 0o600)):
            directory = tmp_path / oct(mode)
            directory.mkdir()
            directory.chmod(mode)
            with hold_image(directory / "x.sif", "built"):
                pass
            assert stat.S_IMODE((directory / ".x.lock").stat().st_mode) == expected
            mutex.make_directory(directory / ".cache" / "layers")
            is_shared = (directory / ".cache" / "layers").stat().st_mode & stat.S_IWGRP
            assert bool(is_shared) == (expected == 0o660)
    finally:
        os.umask(before)
