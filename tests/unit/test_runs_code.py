"""What is kept of the code of a run, and that nothing of it stops a run or tells a secret."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.samples import make_case, read_script
from toolkit import git, scripts
from toolkit.files import read_json
from toolkit.model.code import Code, ScriptFile
from toolkit.planning.plan import decide
from toolkit.runs import code
from toolkit.runs.run import Run

KEY = "hf_" + "a1" * 12


def call(tree: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", tree, *who, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    call(path, "init", "--quiet", "--initial-branch=main")
    (path / "train.py").write_text("print(1)\n")
    (path / ".env").write_text("A=before\n")
    call(path, "add", "--all")
    call(path, "commit", "--quiet", "--message=first")
    monkeypatch.chdir(path)
    return path


def script_file(path: Path) -> ScriptFile:
    return ScriptFile(path=str(path), sha256=read_script(path.parent, path.name).sha256)


def recorded(tree: Path, secrets: tuple[str, ...] = ()) -> tuple[Code, str]:
    run = Run(tree.parent / "run")
    run.directory.mkdir(exist_ok=True)
    code.record(run, script_file(tree / "train.py"), tree, secrets)
    diff = run.directory / "code.diff"
    return read_json(run.directory / "code.json", Code), diff.read_text() if diff.exists() else ""


def test_a_clean_tree_is_its_commit(tree: Path) -> None:
    found, diff = recorded(tree)
    assert found.commit == call(tree, "rev-parse", "HEAD").strip()
    assert (found.branch, found.is_changed, found.untracked, diff) == ("main", False, (), "")
    assert found.script
    assert (
        found.script.sha256
        == subprocess.run(
            ["sha256sum", "train.py"], capture_output=True, text=True, check=True
        ).stdout.split()[0]
    )


def test_what_differs_is_kept_without_secrets(tree: Path) -> None:
    (tree / "train.py").write_text(f"print(2)\nKEY = '{KEY}'\nPHRASE = 'correct horse'\n")
    (tree / ".env").write_text("A=after\n")
    (tree / "new").mkdir()
    (tree / "new" / "file name\n2.py").touch()
    found, diff = recorded(tree, ("correct horse",))
    assert (found.is_changed, found.untracked) == (True, ("new/",))
    assert "+print(2)" in diff
    assert not any(word in diff for word in (KEY, "correct horse", "A=after", ".env"))
    assert (tree.parent / "run" / "code.diff").stat().st_mode & 0o077 == 0


def test_a_large_diff_is_cut(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_MOST_DIFF", 5000)
    (tree / "train.py").write_text("x = 1\n" * 100_000)
    found, diff = recorded(tree)
    assert found.is_cut
    assert 4000 < len(diff) <= 5000


def test_names_of_any_kind_and_number_are_kept(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_MOST_UNTRACKED", 3)
    for name in ("a b", "\n", "한글", '"quoted"', "z"):
        (tree / name).touch()
    found, _ = recorded(tree)
    assert len(found.untracked) == 3
    assert found.note == "2 more untracked names are not kept"


def test_before_the_first_commit_and_outside_of_git(tmp_path: Path) -> None:
    call(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").touch()
    found, _ = recorded(tmp_path)
    assert (found.commit, found.untracked) == ("", ("train.py",))
    subprocess.run(["rm", "-r", tmp_path / ".git"], check=True)
    found, _ = recorded(tmp_path)
    assert (found.tree, found.note) == ("", "")
    assert found.script


@pytest.mark.parametrize("key", ["core.fsmonitor", "diff.external", "core.hooksPath", "core.pager"])
def test_no_program_of_a_configuration_is_run(tree: Path, key: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    call(tree, "config", key, str(program))
    (tree / "train.py").write_text("print(2)\n")
    (tree / ".gitattributes").write_text("* diff=x\n")
    call(tree, "config", "diff.x.textconv", str(program))
    call(tree, "config", "diff.x.command", str(program))
    assert recorded(tree)[0].is_changed
    assert not (tmp_path / "ran").exists()


def test_another_tree_of_the_environment_is_not_asked(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    assert recorded(tree)[0].commit


@pytest.mark.parametrize("body", ["exec sleep 60", "exit 1", "exec cat /dev/zero"])
def test_a_git_that_hangs_fails_or_floods_stops_no_run(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(git, "_PATIENCE", 0.2)
    monkeypatch.setattr(git, "_MOST_NAMES", 1000)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    found, _ = recorded(tree)
    assert found.script
    assert found.commit == ""


def test_a_full_disk_stops_no_run(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(code, "write_atomically", full)
    code.record(Run(tree.parent), None, tree, ())


def test_the_job_tells_that_its_script_has_changed(tmp_path: Path) -> None:
    """The lines of the script about it, run by bash as the job runs them."""
    path = tmp_path / "it's $(train).py"
    path.write_text("print(1)\n")
    decided = decide(
        make_case(script=path.name, folder=str(tmp_path), source=read_script(tmp_path, path.name))
    )
    text = scripts.script(decided)
    start = text.index("# The script is not copied")
    part = "set -euo pipefail\n" + text[start : text.index("\n\n", start)] + "\necho end\n"

    def said() -> str:
        done = subprocess.run(["bash", "-c", part], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    assert said() == "end\n"
    path.write_text("print(2)\n")
    assert (
        said()
        == f"toolkit: {path} has changed since this job was submitted; it runs as it is now\nend\n"
    )
    path.unlink()
    assert said() == "end\n"


def test_repeating_a_run_tells_that_its_script_has_changed(tree: Path) -> None:
    recorded(tree)
    script = script_file(tree / "train.py")
    assert code.change_since(Run(tree.parent / "run"), script) == ""
    other = ScriptFile(path="/x/train.py", sha256="0")
    assert "train.py has changed since run" in code.change_since(Run(tree.parent / "run"), other)
    assert code.change_since(Run(tree.parent / "none"), other) == ""


def test_a_home_directory_under_git_is_not_a_work_tree_of_everything(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git.top(tree) == tree
    monkeypatch.setenv("HOME", str(tree))
    assert git.top(tree / "src") is None
