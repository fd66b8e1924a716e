"""What is kept of the code of a run, or copied of it: no secret, nothing from outside, no run is stopped."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.unit.run_fixtures import full
from tests.unit.samples import make_case, read_script
from toolkit import git, scripts
from toolkit.api.run import write
from toolkit.errors import ConfigError, NoSpaceError, ToolkitError, UsageError
from toolkit.files import hash_file, write_atomically
from toolkit.model.base import to_json
from toolkit.model.case import Case, Target
from toolkit.model.job import Job
from toolkit.model.run import Code, ScriptFile, Snapshot, Tree
from toolkit.planning import case as gathering
from toolkit.planning.plan import decide
from toolkit.planning.target import resolve
from toolkit.runs import code
from toolkit.runs.run import Run, known_directories, remember

KEY = "hf_" + "a1" * 12


def call(tree: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", tree, *who, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project"
    (path / "src").mkdir(parents=True)
    call(path, "init", "--quiet", "--initial-branch=main")
    (path / "src/train.py").write_text("print(1)\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o775)
    (path / ".gitignore").write_text("data/\n")
    (path / "data").mkdir()
    (path / "data/large.bin").touch()
    call(path, "add", "--all")
    call(path, "commit", "--quiet", "--message=first")
    monkeypatch.chdir(path)
    return path


# The record of the code.


def recorded(tree: Path, secrets: Iterable[str] = ()) -> tuple[Code, str]:
    run = Run(tree.parent / "run")
    run.directory.mkdir(exist_ok=True)
    sha256 = read_script(tree / "src", "train.py").sha256
    code.record(run, ScriptFile(path="train.py", sha256=sha256), tree, secrets)
    found, diff = run.read("code.json", Code), run.directory / "code.diff"
    assert found is not None
    return found, diff.read_text() if diff.exists() else ""


def test_a_tree_is_its_commit_and_what_differs_without_secrets(tree, monkeypatch):
    found, diff = recorded(tree)
    assert (found.commit, found.branch) == (call(tree, "rev-parse", "HEAD").strip(), "main")
    assert (found.is_changed, found.untracked, diff) == (False, (), "")
    assert found.script
    assert found.script.sha256 == hash_file(tree / "src/train.py")
    (tree / ".env").write_text("A=before\n")
    call(tree, "add", "--all")
    (tree / ".env").write_text("A=after\n")
    (tree / "src/train.py").write_text(f"print(2)\nKEY = '{KEY}'\nPHRASE = 'correct horse'\n")
    for name in ("new/file name\n2.py", "a b", "\n", "한글", '"quoted"'):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()
    monkeypatch.setattr(code, "_MOST_UNTRACKED", 3)
    found, diff = recorded(tree, ("correct horse",))
    assert found.is_changed
    assert len(found.untracked) == 3
    assert "+print(2)" in diff
    assert not any(word in diff for word in (KEY, "correct horse", "A=after", ".env"))
    assert (tree.parent / "run/code.diff").stat().st_mode & 0o077 == 0
    monkeypatch.setattr(code, "_MOST_DIFF", 5000)
    (tree / "src/train.py").write_text("x = 1\n" * 100_000)
    found, diff = recorded(tree)
    assert found.is_cut
    assert 4000 < len(diff) <= 5000


def test_a_user_without_a_home_has_a_tree_and_no_index(tree, monkeypatch):
    def fail() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert git.top(tree / "src") == tree
    remember(tree / "runs")
    assert known_directories() == ()


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_no_program_of_a_configuration_is_run_and_no_other_tree_asked(tree, tmp_path, monkeypatch):
    ran = program(tmp_path / "program", f"touch {tmp_path}/ran")
    own = ("fsmonitor", "hooksPath", "pager")
    for name in (*(f"core.{each}" for each in own), "diff.external", "diff.x.textconv"):
        call(tree, "config", name, str(ran))
    (tree / "src/train.py").write_text("print(2)\n")
    (tree / ".gitattributes").write_text("* diff=x\n")
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    assert recorded(tree)[0].is_changed
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("body", ["exec sleep 60", "exit 1", "exec cat /dev/zero", "full disk"])
def test_neither_git_nor_a_full_disk_stops_a_run(tree, tmp_path, monkeypatch, body):
    if body == "full disk":
        monkeypatch.setattr(code, "write_atomically", full)
        code.record(Run(tree.parent), None, tree, ())
        return
    monkeypatch.setattr(git, "_PATIENCE", 0.2)
    monkeypatch.setattr(git, "_MOST_NAMES", 1000)
    path = program(tmp_path / "bin/git", body)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    found, _ = recorded(tree)
    assert found.script
    assert found.commit == ""


def test_the_job_and_a_repetition_tell_that_the_script_has_changed(tree, tmp_path):
    """The lines of the script about it, run by bash as the job runs them."""
    path = tmp_path / "it's $(train).py"
    path.write_text("print(1)\n")
    source = read_script(tmp_path, path.name)
    decided = decide(make_case(script=path.name, folder=str(tmp_path), source=source))
    text = scripts.script(decided)
    start = text.index("# The script is not copied")
    part = "set -euo pipefail\n" + text[start : text.index("\n\n", start)] + "\necho end\n"

    changed = f"toolkit: {path} has changed since this job was submitted; it runs as it is now\n"
    for act, said in ((bool, ""), (lambda: path.write_text("2"), changed), (path.unlink, "")):
        act()
        done = subprocess.run(["bash", "-c", part], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (f"{said}end\n", "")
    other, run = ScriptFile(path="/x/train.py", sha256="0"), Run(tree.parent / "run")
    assert code.change_since(run, other) == "", "there is no plan"
    run.plan = decided
    assert code.change_since(run, decided.script_file) == ""
    assert "train.py has changed since run" in code.change_since(run, other)


# The copy of the work tree.


def job_of(tree: Path, folder: str = "src", cwd: str = "") -> Case:
    here = tree / cwd
    return make_case(
        {"snapshot": True, "script": str(tree / folder / "train.py")},
        script=os.path.relpath(tree / folder / "train.py", here),
        folder=str(tree / folder),
        cwd=str(here),
        run=str(tree / "runs/train-0001"),
        tree=code.tree_of(tree / folder, here),
    )


def taken(case: Case) -> tuple[Path, Snapshot]:
    """The copy of a new run, and its record."""
    run = write(case)
    snapshot = code.snapshot_of(run)
    assert snapshot is not None
    return run.directory / "code", snapshot


def names(copy: Path) -> set[str]:
    paths = (path for path in copy.rglob("*") if not path.is_dir() or path.is_symlink())
    return {str(path.relative_to(copy)) for path in paths}


SECRETS = ".env .env.production prod.ENV deep/in/.netrc id_ed25519 server.pem secrets.yaml".split()
COPIED = [
    *"new.py 한글.py $(x) -n a\\b .env.example secrets.py environment.yml".split(),
    "a b",
    "\n",
]
COPIED += "env.py tokenizer.json keys.py run.sh .gitignore".split()


def test_what_git_does_not_ignore_is_copied_but_no_secret_and_nothing_compiled(tree):
    """Without a .gitignore for it, the run itself compiles it again, and could not be repeated."""
    for name in (*SECRETS, *COPIED[:-2], "src/__pycache__/helper.cpython-311.pyc", "src/gone.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("A=1\n")
    os.mkfifo(tree / "pipe")
    (tree / "nested").mkdir()
    call(tree / "nested", "init", "--quiet")
    (tree / "nested/x.py").touch()
    call(tree, "add", "--all", "--", ":!nested")
    (tree / "src/gone.py").unlink()
    for copy, record in (taken(job_of(tree)), taken(job_of(tree))):  # without the run before
        assert names(copy) == set(record.files) == {*COPIED, "src/train.py"}
        assert set(record.left_out) == {*SECRETS, "nested/"}
    assert (copy / "new.py").read_text() == "A=1\n"
    assert stat.S_IMODE((copy / "run.sh").stat().st_mode) == 0o555


def test_a_plan_runs_in_the_snapshot_and_sees_the_work_tree(tree):
    decided = decide(job_of(tree))
    copy = f"{tree}/runs/train-0001/code"
    assert decided.directory == copy
    assert "src/train.py" in decided.launch.program
    assert [bind.source for bind in decided.container.binds] == [str(tree)]
    below = decide(job_of(tree, cwd="src"))
    assert (below.directory, "train.py" in below.launch.program) == (f"{copy}/src", True)
    outside = job_of(tree)
    target = outside.target._replace(cwd="/home/me", script=str(tree / "src/train.py"))
    moved = decide(outside._replace(target=target))
    assert (moved.directory, f"{copy}/src/train.py" in moved.launch.program) == ("/home/me", True)


def test_links_lead_where_they_led_and_nothing_is_copied_through_one(tree, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train.py").write_text("outside\n")
    expected: dict[str, tuple[str, str | Path]] = {
        "inside": ("src/train.py", "src/train.py"),
        "absolute": (str(tree / "src/train.py"), "src/train.py"),
        "up": ("../outside/train.py", outside / "train.py"),
        "out": (str(outside / "train.py"), outside / "train.py"),
        "src/back": ("../run.sh", "run.sh"),
        "dangling": ("nowhere", "nowhere"),
        "folder": ("../outside", outside),
    }
    for name, (target, _) in expected.items():
        (tree / name).symlink_to(target)
    (tree / "loop").symlink_to("loop")
    copy, _ = taken(job_of(tree))
    for name, (_, place) in expected.items():
        assert (copy / name).resolve() == copy / place
    assert (outside / "train.py").read_text() == "outside\n"
    assert code.choose(tree, ["folder/train.py"]) == ({}, ("folder/train.py",))


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_FILES", "disk", "git"])
def test_what_cannot_be_copied_leaves_no_run(tree, monkeypatch, limit):
    (tree / "checkpoints").mkdir()
    (tree / "checkpoints/model.pt").write_bytes(b"x" * 5000)
    if limit == "git":
        with pytest.raises(UsageError, match="not in a git work tree"):
            code.tree_of(tree.parent, tree.parent)
        monkeypatch.setattr(git, "files", lambda _: None)
        with pytest.raises(UsageError, match="does not tell the files"):
            taken(job_of(tree))
        assert list((tree / "runs").iterdir()) == []
        return
    if limit == "disk":
        monkeypatch.setattr("shutil.copyfileobj", full)
        with pytest.raises(OSError, match="No space"):
            taken(job_of(tree))
    else:
        monkeypatch.setattr(code, limit, 3 if limit == "MOST_FILES" else 4000)
        with pytest.raises(NoSpaceError) as caught:
            taken(job_of(tree))
        assert "checkpoints" in caught.value.details[0]
        assert ".gitignore" in (caught.value.next_step or "")
    assert list((tree / "runs").iterdir()) == []


def again(run: Path, here: Path) -> Case:
    """Return the case of a run that is repeated, as it is gathered."""
    target, _ = resolve(str(run), here)
    job = Run(run).read("job.json", Job)
    return make_case(
        {"snapshot": True, "script": job.script if job else ""},
        script=target.script,
        folder=target.folder,
        cwd=target.cwd,
        run=str(here / "runs/train-0001"),
        tree=Tree(root=str(run / "code"), cwd=str(here), is_copy=True),
    )


def test_the_same_again_runs_the_snapshot_and_not_what_it_left_behind(tree):
    (tree / ".env").write_text("A=1\n")
    first, before = taken(job_of(tree))
    record = (first.parent / "code.json").read_text()
    (tree / "src/train.py").write_text("print(2)\n")
    (first / "checkpoint.pt").touch()
    for copy in (first, tree / "runs/train-0002/code"):
        copied, now = taken(again(copy.parent, tree))
        assert (copied / "src/train.py").read_text() == "print(1)\n"
        assert names(copied) == set(before.files)
        assert (Run(copied.parent).plan.directory, now) == (str(copied), before)
        assert (copied.parent / "code.json").read_text() == record
        subprocess.run(["rm", "-r", copy.parent], check=True)
    live, own = resolve(str(copied.parent), tree, is_live=True)
    assert (live.folder, live.is_copy) == (str(tree / "src"), False)
    assert own.values["script"] == str(tree / "src/train.py")


@pytest.mark.parametrize("change", ["edited", "removed", "record"])
def test_a_snapshot_that_was_changed_is_not_run_again(tree, change):
    copy, _ = taken(job_of(tree))
    if change == "record":
        write_atomically(copy.parent / "snapshot.json", to_json(Job()))
    else:
        (copy / "run.sh").unlink()
    if change == "edited":
        (copy / "run.sh").write_text("other\n")
    match = "there is no key|missing" if change == "record" else "not as they were"
    with pytest.raises(ConfigError, match=match):
        write(again(copy.parent, tree))


def test_what_was_installed_needs_no_copy(tree, monkeypatch, tmp_path):
    shipped = tmp_path / "site-packages/jobs/digits"
    shipped.mkdir(parents=True)
    target = Target(str(shipped / "train.py"), str(shipped), str(tree))
    monkeypatch.setattr("toolkit.config.is_shipped", lambda path: path == shipped)
    assert gathering._tree(target, Job(snapshot=True), tree) is None
    with pytest.raises(ToolkitError, match="not in a git work tree"):
        gathering._tree(target._replace(folder=str(tmp_path)), Job(snapshot=True), tree)
