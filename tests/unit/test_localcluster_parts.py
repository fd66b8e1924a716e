"""The parts of the local cluster that need no Slurm: where it lies, whose process is whose, one at a time, what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.progress import Silent
from toolkit.errors import BusyError, ClusterError, SlurmUnreachableError, UsageError
from toolkit.localcluster import directory, packages, processes
from toolkit.localcluster.access import access, default_name
from toolkit.localcluster.daemon_logs import fatal_errors
from toolkit.localcluster.lifecycle import down, shared_directories
from toolkit.localcluster.paths import Paths, below_private, paths_in, paths_of


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_in(tmp_path / "local")


def test_the_directory_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLKIT_CLUSTER_DIR", raising=False)
    monkeypatch.delenv("TOOLKIT_CLUSTER", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    assert paths_of(default_name()).directory == Path(
        "/home/ada/.local/state/toolkit/clusters/local"
    )
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", "/var/c")
    monkeypatch.setenv("TOOLKIT_CLUSTER", "mine")
    assert paths_of(default_name()).conf == Path("/var/c/mine/etc/slurm.conf")


@pytest.mark.parametrize("root", ["/" + "x" * 56, "/a b", "/a;b", "/a'b", "/ä"])
def test_directories_that_cannot_be(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", root)
    with pytest.raises(ClusterError) as caught:
        paths_of("local")
    assert "TOOLKIT_CLUSTER_DIR" in (caught.value.next_step or "")


@pytest.mark.parametrize(("length", "text"), [(54, "a name of at most 5 characters"), (70, "")])
def test_a_long_name_is_refused_with_the_length_that_fits(
    length: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", "/" + "x" * (length - 1))
    with pytest.raises(ClusterError) as caught:
        paths_of("imitation")
    step = caught.value.next_step or ""
    assert "TOOLKIT_CLUSTER_DIR" in step
    assert step.startswith(text or "export")


@pytest.mark.parametrize("name", ["", "../x", "A", "a b", "-a", "x" * 21, "a\n"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError):
        paths_of(name)


def test_a_cluster_that_is_not_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", str(tmp_path)[:40])
    monkeypatch.delenv("TOOLKIT_CLUSTER", raising=False)
    with pytest.raises(SlurmUnreachableError) as caught:
        access("nowhere")
    assert caught.value.next_step == "toolkit cluster up --name nowhere"
    with pytest.raises(SlurmUnreachableError, match="the local cluster is not up") as caught:
        access()
    assert caught.value.next_step == "toolkit cluster up"


def test_a_process_of_somebody_else_is_not_ours(paths: Paths) -> None:
    """Neither a process that has our number by chance, nor one that only looks alike, is killed."""
    words = (sys.executable, "-c", "import time; time.sleep(60)", "-m", processes.SUPERVISOR)
    other = subprocess.Popen((*words, str(paths.directory) + "2"))
    ours = subprocess.Popen((*words, str(paths.directory)))
    try:
        until = time.monotonic() + 30  # a process that has just begun has no words for a moment
        while not processes.supervisors(paths) and time.monotonic() < until:
            time.sleep(0.01)
        assert processes.supervisors(paths) == (ours.pid,)
        assert processes.stop(paths) is True
        assert ours.wait(timeout=10) == -9
        assert other.poll() is None
        assert processes.stop(paths) is False
    finally:
        other.kill()
        other.wait()
        ours.kill()
        ours.wait()


def test_one_at_a_time(paths: Paths) -> None:
    with directory.locked(paths), pytest.raises(BusyError) as caught, directory.locked(paths):
        pass
    assert f"process {os.getpid()}" in caught.value.cause
    assert not paths.directory.exists()


def test_a_lock_goes_with_its_holder(paths: Paths) -> None:
    code = "import sys, time; from pathlib import Path; from toolkit.localcluster import directory; from toolkit.localcluster.paths import paths_in\n"
    code += "with directory.locked(paths_in(Path(sys.argv[1]))): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        (sys.executable, "-c", code, str(paths.directory)), stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError), directory.locked(paths):
        pass
    holder.kill()
    holder.communicate()
    with directory.locked(paths):
        (paths.directory / "file").touch()
    assert {entry.name for entry in paths.directory.iterdir()} == {"file", paths.marker.name}


def _contents(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in files}


@pytest.mark.parametrize("made", ["files", "copy", "renamed", "link", "file", "forged"])
def test_only_a_cluster_s_own_directory_is_touched(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` and `down` refuse any other, whatever it holds, and leave it as it was."""
    root = tmp_path / "r"
    other, here = paths_in(root / "other"), paths_in(root / "local")
    directory.claim(other)
    if made == "files":
        (here.directory / "lock").mkdir(parents=True)
    elif made == "copy":
        shutil.copytree(other.directory, here.directory)
    elif made == "renamed":
        other.directory.rename(here.directory)
    elif made == "link":
        here.directory.symlink_to(other.directory)
    elif made == "file":
        here.directory.write_text("mine")
    else:
        here.directory.mkdir()
        here.marker.write_text("{}")
    (root / "thesis.tex").write_text("years of work")
    if here.directory.is_dir():
        (here.directory / "thesis.tex").write_text("years of work")
    before = _contents(root)
    monkeypatch.setattr("toolkit.localcluster.lifecycle.paths_of", lambda _: here)
    with pytest.raises(ClusterError, match="nothing in it was touched"):
        down("local", Silent())
    with pytest.raises(ClusterError, match="nothing in it was touched"), directory.locked(here):
        pass
    assert _contents(root) == before
    assert sorted(path.name for path in root.iterdir()) == sorted(
        {"local", "thesis.tex"} | ({"other"} if made != "renamed" else set())
    )


def test_an_empty_directory_is_used_by_up_and_left_by_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = paths_in(tmp_path / "local")
    here.directory.mkdir()
    monkeypatch.setattr("toolkit.localcluster.lifecycle.paths_of", lambda _: here)
    assert down("local", Silent()) is False
    assert here.directory.is_dir()
    with directory.locked(here):
        assert directory.is_ours(here)
    assert not here.directory.exists()


def test_what_nodes_share_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as text:
        place = Path(text).resolve()
        (place / "a" / "b").mkdir(parents=True)
        monkeypatch.chdir(place / "a" / "b")
        outside = paths_in(Path("/var/c/local"))
        assert str(place / "a" / "b") in shared_directories(outside, ())
        found = shared_directories(outside, (str(place / "a"), "/usr"))
        assert str(place / "a") in found
        assert str(place / "a" / "b") not in found
        assert "/usr" not in found
        for wrong in ("/tmp", "/dev/shm", str(place / "nowhere")):
            with pytest.raises(UsageError):
                shared_directories(outside, (wrong,))
    assert not below_private("/tmp")
    assert not below_private("/tmpfiles/x")


def test_the_daemons_that_stopped_themselves_are_named(tmp_path: Path) -> None:
    line = "fatal: Unable to determine this slurmd's NodeName"
    for name in ("nid002", "nid001"):
        (tmp_path / f"slurmd.{name}.out").write_text(f"slurmd: {line}\n")
    (tmp_path / "slurmd.nid001.log").write_text(f"[2026-11-22T10:00:00.000] {line}\nend\n")
    (tmp_path / "slurmctld.log").write_text("[2026-11-22T10:00:00.000] error: not fatal\n")
    error = "slurmd: error: cannot create auth context\n"
    (tmp_path / "slurmd.nid003.out").write_text(
        f"slurmd: error: other\n{error}slurmd: error: slurmd initialization failed\n"
    )
    assert fatal_errors(tmp_path.iterdir()) == {
        "cannot create auth context": ("slurmd.nid003",),
        "Unable to determine this slurmd's NodeName": ("slurmd.nid001", "slurmd.nid002"),
    }
    assert fatal_errors([tmp_path / "none.log"]) == {}


def test_what_is_missing_is_named_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packages,
        "which",
        lambda program: None if program in ("slurmd", "mariadbd") else f"/bin/{program}",
    )
    monkeypatch.setattr(packages, "_any", lambda *_: True)
    assert packages.needed() == ("slurmd",)
    assert packages.needed(accounting=True) == ("mariadb-server", "slurmd")
