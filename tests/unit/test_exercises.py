"""Exercises after a pip installation: listed, copied as a whole or not at all, and run from the copy."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.unit.test_cli import said
from toolkit.errors import UsageError
from toolkit.planning.target import resolve
from toolkit.workshops.exercises import copy_folder, exercises


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_are_listed_with_what_they_show():
    listed = json.loads(said("jobs", "list", "--json")[1])
    assert {one["name"] for one in listed} >= {"digits-ddp", "mpi-hello", "ray-train"}
    assert all(one["summary"] for one in listed)
    assert "digits-ddp" in said("jobs", "list")[1]


@pytest.mark.parametrize("name", exercises())
def test_each_can_be_copied_and_run(here, name):
    code, out, _ = said("jobs", "copy", name)
    target, _ = resolve(f"./{name}", here)
    assert (code, target.folder) == (0, str(here / name))
    assert not list(here.rglob("__pycache__"))
    assert f"toolkit run ./{name}" in out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["digits-dpd"], 66),
        (["../jobs/digits-ddp"], 66),
        (["digits-ddp", "there"], 64),
        (["digits-ddp", "dangling"], 64),
        (["digits-ddp", "file/x"], 64),
        (["digits-ddp", "/proc/x"], 64),
    ],
)
def test_what_cannot_be_copied_is_refused(here, words, code):
    (here / "there").mkdir()
    (here / "file").touch()
    (here / "dangling").symlink_to("nowhere")
    assert said("jobs", "copy", *words)[0] == code
    assert {path.name for path in here.iterdir()} == {"dangling", "file", "there"}


def test_linked_directories_are_copied_and_none_is_left_out_silently(here):
    (here / "shared").mkdir()
    (here / "shared/x.csv").write_text("1")
    (here / "own/runs").mkdir(parents=True)
    (here / "own/data").symlink_to("../shared")
    copy_folder(here / "own", here / "copy")
    assert [path.name for path in (here / "copy").iterdir()] == ["data"]
    assert (here / "copy/data/x.csv").read_text() == "1"
    (here / "own/data/again").symlink_to("..")
    with pytest.raises(UsageError, match="symbolic links"):
        copy_folder(here / "own", here / "other")
    assert not (here / "other").exists()


def test_a_full_disk_leaves_nothing(here, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    assert said("jobs", "copy", "digits-ddp")[0] == 73
    assert list(here.iterdir()) == []
