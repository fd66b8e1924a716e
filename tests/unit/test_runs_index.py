"""The index of directories that hold runs, and job ids in the place of a run's name."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.hostile import HOSTILE
from tests.unit.samples import make_case
from toolkit import scripts
from toolkit.cli.ps import command as ps
from toolkit.errors import ScriptMissingError, UnknownRunError
from toolkit.files import write_atomically
from toolkit.model.base import to_json
from toolkit.model.run import Outcome, Submission
from toolkit.planning.plan import decide
from toolkit.planning.target import resolve
from toolkit.runs import index, store

DECIDED = decide(make_case())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended_run(runs: Path, job_id: int, name: str = "train") -> store.Paths:
    directory = store.next_directory(runs, name)
    assert store.create(directory)
    paths = store.write(directory, DECIDED, make_case().job, scripts.script(DECIDED))
    submission = Submission(job_id=job_id, site="local", submitted="2026-11-22T00:00:00+00:00")
    write_atomically(paths.submission, to_json(submission))
    write_atomically(paths.outcome, to_json(Outcome(state="COMPLETED", exit_code=0, seconds=1.0)))
    return paths


def files() -> list[str]:
    return sorted(path.name for path in index.place().glob("*"))


def test_runs_of_all_directories_are_listed(home: Path) -> None:
    ended_run(home / "a" / "runs", 7)
    ended_run(home / "b" / "runs", 8)
    done = CliRunner().invoke(ps, ["--all-directories", "--json"])
    rows = json.loads(done.stdout)
    assert {(row["job_id"], row["directory"]) for row in rows} == {
        (7, str(home / "a/runs/train-0001")),
        (8, str(home / "b/runs/train-0001")),
    }
    assert "b/runs" in CliRunner().invoke(ps, ["-A"]).stdout
    assert "ps --all-directories" in CliRunner().invoke(ps, []).output


@pytest.mark.parametrize("renamed", ["a/project/runs", "a/project", "a"])
def test_a_directory_that_was_renamed_is_found(home: Path, renamed: str) -> None:
    ended_run(home / "a" / "project" / "runs", 7)
    (home / renamed).rename(home / f"{renamed}-new")
    assert len(index.known().directories) == 1
    assert len(files()) == 1
    assert index.known().missing == ()


def test_a_directory_that_was_moved_is_known_where_it_is_used(home: Path) -> None:
    ended_run(home / "a" / "runs", 7)
    (home / "x" / "y").mkdir(parents=True)
    (home / "a" / "runs").rename(home / "x" / "y" / "runs")
    os.chdir(home / "x" / "y")
    assert CliRunner().invoke(ps, []).exit_code == 0
    assert index.known().directories == (home / "x/y/runs",)


def test_a_removed_directory_is_forgotten(home: Path) -> None:
    ended_run(home / "a" / "runs", 7)
    (home / "a").rename(home / "gone")
    subprocess.run(["rm", "-r", home / "gone"], check=True)
    assert index.known() == index.Known((), ())
    assert files() == []


def test_what_another_host_sees_is_not_forgotten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    ended_run(home / "a" / "runs", 7)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    (home / "a").rename(home / ".gone")
    (home / ".gone" / "runs").rename(home / ".gone" / "hidden")
    (entry,) = index.known().missing
    assert (entry.host, entry.directory) == ("other", str(home / "a/runs"))
    assert "last seen on other" in CliRunner().invoke(ps, ["-A"]).output


def test_one_directory_under_two_names_is_listed_once(home: Path) -> None:
    ended_run(home / "a" / "runs", 7)
    (home / "link").symlink_to(home / "a")
    index.remember(home / "link" / "runs")
    assert len(index.known().directories) == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_run_does_not_fail_for_the_index(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(index, "write_atomically", full)
    assert store.create(home / "runs" / "train-0001")
    assert files() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "\0", '{"directory": 3}', "x" * 100_000])
def test_a_damaged_entry_is_passed_over(home: Path, text: str) -> None:
    ended_run(home / "a" / "runs", 7)
    (index.place() / "broken.json").write_text(text)
    (index.place() / "loop.json").symlink_to("loop.json")
    os.mkfifo(index.place() / "pipe.json")
    assert index.known().directories == (home / "a/runs",)


def test_without_a_home_there_is_no_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert store.create(home / "runs" / "train-0001")
    assert index.known() == index.Known((), ())


def test_many_processes_write_at_once(home: Path) -> None:
    """Each adds directories of its own and all add one; nothing is lost and nothing is half there."""
    code = (
        "import sys; from pathlib import Path; from toolkit.runs import index\n"
        "for number in range(20):\n"
        "    for name in (f'{sys.argv[1]}-{number}', 'shared'):\n"
        "        runs = Path(name) / 'runs'; runs.mkdir(parents=True, exist_ok=True)\n"
        "        index.remember(runs)\n"
    )
    argv = [sys.executable, "-c", code]
    started = [subprocess.Popen([*argv, str(number)], cwd=home) for number in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert len(files()) == 81
    assert len(index.known().directories) == 81


@pytest.mark.parametrize("name", [name for name in HOSTILE if "/" not in name and "\0" not in name])
def test_any_name_of_a_directory_is_kept(home: Path, name: str) -> None:
    ended_run(home / f"d{name}" / "runs", 7)
    assert index.known().directories == (home / f"d{name}" / "runs",)


def test_a_job_id_names_a_run_wherever_it_is(home: Path) -> None:
    here, there = ended_run(home / "runs", 7), ended_run(home / "b" / "runs", 8)
    assert store.find("7", Path("runs")).directory == here.directory
    assert store.find("8", Path("runs")).directory == there.directory
    assert store.find("8_3", Path("runs")).directory == there.directory
    assert (here.word, there.word) == ("train-0001", "b/runs/train-0001")
    with pytest.raises(UnknownRunError, match="job 9"):
        store.find("9", Path("runs"))


def test_the_newest_run_of_this_directory_has_a_job_id_that_was_given_twice(home: Path) -> None:
    ended_run(home / "b" / "runs", 7)
    first, second = ended_run(home / "runs", 7), ended_run(home / "runs", 7)
    os.utime(first.plan, (1, 1))
    assert store.find("7", Path("runs")).name == second.name


def test_a_run_of_another_directory_is_named_in_the_error(home: Path) -> None:
    ended_run(home / "b" / "runs", 8, "other")
    ended_run(home / "runs", 7)
    with pytest.raises(UnknownRunError) as caught:
        store.find("other-0001", Path("runs"))
    assert str(home / "b/runs/other-0001") in (caught.value.next_step or "")


def test_a_run_is_repeated_by_name_or_job_id(home: Path) -> None:
    (home / "train.py").touch()
    directory = store.next_directory(home / "runs", "train")
    store.create(directory)
    store.write(directory, DECIDED, replace(make_case().job, script=str(home / "train.py")), "")
    submission = Submission(job_id=7, site="local", submitted="2026-11-22T00:00:00+00:00")
    write_atomically(store.Paths(directory).submission, to_json(submission))
    for name in ("train-0001", "7", "runs/train-0001"):
        assert resolve(name, home)[1].origin == "train-0001"
    with pytest.raises(ScriptMissingError):
        resolve("8", home)
