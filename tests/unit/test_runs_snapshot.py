"""A snapshot is the work tree as it was: nothing from outside of it, no secrets, and the same when it is run again."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.samples import make_case
from tests.unit.test_runs_code import call
from toolkit.api import run as submit
from toolkit.errors import ConfigError, NoSpaceError, ToolkitError, UsageError
from toolkit.files import read_json, write_atomically
from toolkit.model.base import to_json
from toolkit.model.case import Case, Target
from toolkit.model.code import Snapshot, Tree
from toolkit.model.job import Job
from toolkit.planning import case as gathering
from toolkit.planning.plan import decide
from toolkit.planning.target import resolve
from toolkit.runs import code as snapshot
from toolkit.runs.directories import all_runs
from toolkit.runs.run import Run


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project"
    (path / "src").mkdir(parents=True)
    call(path, "init", "--quiet")
    (path / "src" / "train.py").write_text("print(1)\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o775)
    (path / ".gitignore").write_text("data/\n")
    (path / "data").mkdir()
    (path / "data" / "large.bin").touch()
    call(path, "add", "--all")
    call(path, "commit", "--quiet", "--message=first")
    monkeypatch.chdir(path)
    return path


def job_of(tree: Path, folder: str = "src", cwd: str = "", **changes: object) -> Case:
    here = tree / cwd
    return make_case(
        {"snapshot": True, "script": str(tree / folder / "train.py")},
        script=os.path.relpath(tree / folder / "train.py", here),
        folder=str(tree / folder),
        cwd=str(here),
        run=str(tree / "runs" / "train-0001"),
        tree=snapshot.tree_of(tree / folder, here),
        **changes,
    )


def taken(tree: Path) -> tuple[Run, Snapshot]:
    run = submit.write(job_of(tree))
    return run, read_json(run.directory / "snapshot.json", Snapshot)


def names(paths: Run) -> set[str]:
    return {
        str(path.relative_to(paths.directory / "code"))
        for path in (paths.directory / "code").rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


def test_what_git_does_not_ignore_is_copied(tree: Path) -> None:
    (tree / "new.py").write_text("x = 1\n")
    (tree / "empty.py").touch()
    paths, found = taken(tree)
    assert (
        names(paths)
        == set(found.files)
        == {".gitignore", "run.sh", "src/train.py", "new.py", "empty.py"}
    )
    assert ((paths.directory / "code") / "new.py").read_text() == "x = 1\n"
    assert stat.S_IMODE(((paths.directory / "code") / "run.sh").stat().st_mode) == 0o555
    assert not os.access((paths.directory / "code") / "new.py", os.W_OK) or os.geteuid() == 0


def test_what_python_compiles_is_neither_copied_nor_compared(tree: Path) -> None:
    """Without a .gitignore for it, the run itself writes it again, and could not be repeated."""
    compiled = tree / "src" / "__pycache__" / "helper.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"1")
    paths, found = taken(tree)
    assert "src/train.py" in found.files
    assert str(compiled.relative_to(tree)) not in found.files
    assert not ((paths.directory / "code") / "src" / "__pycache__").exists()
    of_older = replace(found, files={"__pycache__/a.pyc": "0"})
    snapshot._require_same(of_older, {"__pycache__/a.pyc": "1"})


def test_a_plan_runs_in_the_snapshot_and_sees_the_work_tree(tree: Path) -> None:
    decided = decide(job_of(tree))
    code = f"{tree}/runs/train-0001/code"
    assert decided.directory == code
    assert "src/train.py" in decided.launch.program
    assert [bind.source for bind in decided.container.binds] == [str(tree)]
    below = decide(job_of(tree, cwd="src"))
    assert (below.directory, "train.py" in below.launch.program) == (f"{code}/src", True)
    outside = job_of(tree)
    target = outside.target._replace(cwd="/home/me", script=str(tree / "src/train.py"))
    moved = decide(outside._replace(target=target))
    assert (moved.directory, f"{code}/src/train.py" in moved.launch.program) == ("/home/me", True)


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        (".env", True),
        (".env.production", True),
        ("prod.ENV", True),
        ("deep/in/.netrc", True),
        ("id_ed25519", True),
        ("server.pem", True),
        ("secrets.yaml", True),
        (".env.example", False),
        ("secrets.py", False),
        ("environment.yml", False),
        ("env.py", False),
        ("tokenizer.json", False),
        ("keys.py", False),
    ],
)
def test_secrets_are_left_out_and_named(tree: Path, name: str, is_secret: bool) -> None:
    assert snapshot.is_secret_file(name) == is_secret
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text("A=1\n")
    call(tree, "add", "--all")
    paths, found = taken(tree)
    assert (name in names(paths), name in found.left_out) == (not is_secret, is_secret)


def test_links_lead_where_they_led(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside\n")
    links = {
        "inside": "src/train.py",
        "absolute": str(tree / "src" / "train.py"),
        "up": "../outside/file",
        "out": str(tmp_path / "outside" / "file"),
        "src/back": "../run.sh",
        "dangling": "nowhere",
        "loop": "loop",
        "folder": "../outside",
    }
    for name, target in links.items():
        (tree / name).symlink_to(target)
    paths, _ = taken(tree)
    for name in ("inside", "absolute"):
        assert ((paths.directory / "code") / name).resolve() == (
            paths.directory / "code"
        ) / "src/train.py"
    for name in ("up", "out"):
        assert ((paths.directory / "code") / name).resolve() == tmp_path / "outside/file"
    assert ((paths.directory / "code") / "src/back").resolve() == (
        paths.directory / "code"
    ) / "run.sh"
    assert ((paths.directory / "code") / "folder").resolve() == tmp_path / "outside"
    assert (tmp_path / "outside" / "file").read_text() == "outside\n"
    assert not ((paths.directory / "code") / "dangling").exists()


def test_nothing_is_copied_through_a_link_in_the_place_of_a_directory(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "train.py").write_text("secret\n")
    (tree / "src" / "train.py").unlink()
    (tree / "src").rmdir()
    (tree / "src").symlink_to(tmp_path / "outside")
    assert snapshot._chosen(tree, ["src/train.py"]) == ({}, ["src/train.py"])


def test_pipes_other_trees_and_runs_are_left_out(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "nested").mkdir()
    call(tree / "nested", "init", "--quiet")
    (tree / "nested" / "x.py").touch()
    (tree / "src" / "gone.py").touch()
    call(tree, "add", "src/gone.py")
    (tree / "src" / "gone.py").unlink()
    first, _ = taken(tree)
    second, found = taken(tree)
    assert first.name != second.name
    assert not any(
        name.startswith(("runs", "pipe", "nested", "src/gone")) for name in names(second)
    )
    assert found.left_out == ("nested/",)


@pytest.mark.parametrize("name", ["a b", "\n", "한글.py", "$(x)", "-n", "a\\b"])
def test_any_name_is_copied(tree: Path, name: str) -> None:
    (tree / name).write_text("x")
    assert name in names(taken(tree)[0])


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_FILES"])
def test_too_much_is_refused_before_anything_is_copied(
    tree: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    (tree / "checkpoints").mkdir()
    (tree / "checkpoints" / "model.pt").write_bytes(b"x" * 5000)
    monkeypatch.setattr(snapshot, limit, 3 if limit == "MOST_FILES" else 4000)
    with pytest.raises(NoSpaceError) as caught:
        taken(tree)
    assert "checkpoints" in caught.value.details[0]
    assert ".gitignore" in (caught.value.next_step or "")
    assert list((tree / "runs").iterdir()) == []


def test_a_full_disk_leaves_no_run(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        taken(tree)
    assert list((tree / "runs").iterdir()) == []


def test_without_git_there_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not in a git work tree"):
        snapshot.tree_of(tmp_path, tmp_path)


def again(run: Path, here: Path) -> Case:
    """Return the case of a run that is repeated, as it is gathered."""
    target, _ = resolve(str(run), here)
    job = read_json(run / "job.json", Job)
    return make_case(
        {"snapshot": True, "script": job.script},
        script=target.script,
        folder=target.folder,
        cwd=target.cwd,
        run=str(here / "runs" / "train-0001"),
        tree=Tree(root=str(run / "code"), cwd=str(here), is_copy=True),
    )


def test_the_same_again_runs_the_snapshot_and_not_what_it_left_behind(tree: Path) -> None:
    (tree / ".env").write_text("A=1\n")
    first, before = taken(tree)
    (tree / "src" / "train.py").write_text("print(2)\n")
    ((first.directory / "code") / "checkpoint.pt").touch()
    second = submit.write(again(first.directory, tree))
    assert ((second.directory / "code") / "src" / "train.py").read_text() == "print(1)\n"
    assert names(second) == set(before.files)
    assert second.plan.directory == str(second.directory / "code")
    assert read_json(second.directory / "snapshot.json", Snapshot) == before
    assert (second.directory / "code.json").read_text() == (
        first.directory / "code.json"
    ).read_text()
    subprocess.run(["rm", "-r", first.directory], check=True)
    third = submit.write(again(second.directory, tree))
    assert ((third.directory / "code") / "src" / "train.py").read_text() == "print(1)\n"
    assert read_json(third.directory / "job.json", Job).script == str(tree / "src" / "train.py")
    live, _ = resolve(str(third.directory), tree, is_live=True)
    assert (live.folder, live.is_copy) == (str(tree / "src"), False)


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_a_snapshot_that_was_changed_is_not_run_again(tree: Path, change: str) -> None:
    first, _ = taken(tree)
    file = (first.directory / "code") / "run.sh"
    file.unlink()
    if change == "edited":
        file.write_text("other\n")
    with pytest.raises(ConfigError, match="not as they were"):
        submit.write(again(first.directory, tree))


def test_a_broken_record_is_told(tree: Path) -> None:
    first, _ = taken(tree)
    write_atomically(first.directory / "snapshot.json", to_json(Job()))
    with pytest.raises(ConfigError):
        resolve(str(first.directory), tree)


def test_a_copy_that_is_killed_leaves_a_run_that_is_listed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kill -9 does, in which nothing is tidied up."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("shutil.copyfileobj", killed)
    monkeypatch.setattr("shutil.rmtree", lambda _: None)
    with pytest.raises(Killed):
        taken(tree)
    assert [paths.name for paths in all_runs(tree / "runs")] == ["train-0001"]


def test_what_was_installed_needs_no_copy(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipped = tmp_path / "site-packages" / "jobs" / "digits"
    shipped.mkdir(parents=True)
    target = Target(str(shipped / "train.py"), str(shipped), str(tree))
    monkeypatch.setattr("toolkit.config.is_shipped", lambda path: path == shipped)
    assert gathering._tree(target, Job(snapshot=True), tree) is None
    own = target._replace(folder=str(tmp_path))
    with pytest.raises(ToolkitError, match="not in a git work tree"):
        gathering._tree(own, Job(snapshot=True), tree)
