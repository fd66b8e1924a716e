"""Exercises after a pip installation: listed, copied as a whole or not at all, and run from the copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.groups import jobs as command
from toolkit.errors import NoSpaceError, ScriptMissingError, UsageError
from toolkit.planning.target import resolve
from toolkit.workshops.exercises import copy_folder, exercises


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_are_listed_with_what_they_show():
    listed = json.loads(CliRunner().invoke(command, ["list", "--json"]).stdout)
    assert {one["name"] for one in listed} >= {"digits-ddp", "mpi-hello", "ray-train"}
    assert all(one["summary"] for one in listed)
    assert "digits-ddp" in CliRunner().invoke(command, ["list"]).stdout


@pytest.mark.parametrize("name", exercises())
def test_each_can_be_copied_and_run(here, name):
    done = CliRunner().invoke(command, ["copy", name])
    assert done.exit_code == 0
    target, _ = resolve(f"./{name}", here)
    assert target.folder == str(here / name)
    assert not list(here.rglob("__pycache__"))
    assert f"toolkit run ./{name}" in done.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["digits-dpd"], ScriptMissingError),
        (["../jobs/digits-ddp"], ScriptMissingError),
        (["digits-ddp", "there"], UsageError),
        (["digits-ddp", "dangling"], UsageError),
        (["digits-ddp", "file/x"], UsageError),
        (["digits-ddp", "/proc/x"], UsageError),
    ],
)
def test_what_cannot_be_copied_is_told(here, words, error):
    (here / "there").mkdir()
    (here / "file").touch()
    (here / "dangling").symlink_to("nowhere")
    done = CliRunner().invoke(command, ["copy", *words])
    assert isinstance(done.exception, error)
    assert sorted(path.name for path in here.iterdir()) == ["dangling", "file", "there"]


def test_linked_directories_are_copied_and_none_is_left_out_silently(here):
    (here / "shared").mkdir()
    (here / "shared" / "x.csv").write_text("1")
    (here / "own" / "runs").mkdir(parents=True)
    (here / "own" / "data").symlink_to("../shared")
    copy_folder(here / "own", here / "copy")
    assert [path.name for path in (here / "copy").iterdir()] == ["data"]
    assert (here / "copy" / "data" / "x.csv").read_text() == "1"
    (here / "own" / "data" / "again").symlink_to("..")
    with pytest.raises(UsageError, match="symbolic links"):
        copy_folder(here / "own", here / "other")
    assert not (here / "other").exists()


def test_a_full_disk_leaves_nothing(here, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    error = CliRunner().invoke(command, ["copy", "digits-ddp"]).exception
    assert isinstance(error, NoSpaceError)
    assert list(here.iterdir()) == []
