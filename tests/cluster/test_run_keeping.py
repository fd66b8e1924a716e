"""Runs on a real Slurm: found from anywhere, repeated as they were, and removed once they have ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.ranks import wait_for

pytestmark = pytest.mark.usefixtures("cluster")
ON_HOST = ("run", "--runtime", "none", "--launcher", "none")


def run(toolkit: Toolkit, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = toolkit(*ON_HOST, *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def waiting(toolkit: Toolkit, cwd: Path, *words: str) -> int:
    """Submit a job that waits for a time in the future, and return its id."""
    done = run(toolkit, cwd, "--detach", "--json", *words)
    return int(json.loads(done.stdout)["job_id"])


def test_a_run_is_found_by_its_job_from_elsewhere_and_removed(toolkit, shared_dir):
    here, there = shared_dir / "here", shared_dir / "there"
    here.mkdir()
    there.mkdir()
    (here / "sleep.py").write_text("import time; print('up', flush=True); time.sleep(600)\n")
    job = waiting(toolkit, here, "sleep.py")
    wait_for(lambda: "up" in toolkit("logs", str(job), cwd=there).stdout, "the rank to print")
    listed = json.loads(toolkit("ps", "--all-directories", "--json", cwd=there).stdout)
    assert [row["state"] for row in listed if row["directory"].startswith(str(here))] == ["RUNNING"]
    refused = toolkit("rm", str(job), cwd=there)
    assert (refused.returncode, "has not ended" in refused.stderr) == (75, True)
    assert (here / "runs" / "sleep-0001" / "plan.json").exists()
    removed = toolkit("rm", "--cancel", str(job), cwd=there)
    assert removed.returncode == 0, removed.stderr
    assert list((here / "runs").iterdir()) == []


def result_of(toolkit: Toolkit, cwd: Path, run_name: str) -> str:
    """Follow a run to its end, and return what it printed."""
    done = toolkit("logs", "--follow", run_name, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return toolkit("logs", run_name, cwd=cwd).stdout


@pytest.mark.parametrize("way", ["live", "snapshot"])
def test_a_script_that_changes_while_its_job_waits(toolkit, shared_dir, way):
    """Without a snapshot the log tells; with one the job, and its repetition, run what was submitted."""
    subprocess.run(["git", "init", "--quiet", shared_dir], check=True)
    (shared_dir / "lib").mkdir()
    (shared_dir / "lib" / "what.py").write_text("WHAT = 'first'\n")
    script = shared_dir / "train.py"
    script.write_text("import sys; sys.path.insert(0, 'lib'); import what; print(what.WHAT, 1)\n")
    (shared_dir / "first.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('runs/go').exists(): time.sleep(0.1)\n"
    )
    (shared_dir / ".env").write_text("KEY=1\n")
    before = waiting(toolkit, shared_dir, "first.py")
    options = ("--snapshot",) if way == "snapshot" else ()
    waiting(toolkit, shared_dir, "--after", str(before), *options, "train.py")
    script.write_text(script.read_text().replace("1)", "2)"))
    (shared_dir / "lib" / "what.py").write_text("WHAT = 'second'\n")
    (shared_dir / "runs/go").touch()
    printed = result_of(toolkit, shared_dir, "train-0001")
    assert ("first 1" in printed, "second 2" in printed) == (way == "snapshot", way == "live")
    assert ("has changed since this job was submitted" in printed) == (way == "live")
    again = run(toolkit, shared_dir, "runs/train-0001")
    assert ("first 1" if way == "snapshot" else "second 2") in again.stdout
    assert ("has changed since train-0001" in again.stderr) == (way == "live")
    assert ("left out: .env" in again.stderr) == (way == "snapshot")
    assert not list((shared_dir / "runs").rglob(".env"))
