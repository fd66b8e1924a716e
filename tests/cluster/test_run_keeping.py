"""Runs on a real Slurm: repeated as they were."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit

pytestmark = pytest.mark.usefixtures("cluster")
ON_HOST = ("run", "--runtime", "none", "--launcher", "none")


def run(toolkit: Toolkit, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = toolkit(*ON_HOST, *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("way", ["live", "snapshot"])
def test_a_script_that_changes_while_its_job_waits(toolkit, shared_dir, way):
    """Without a snapshot the log tells; with one the job, and its repetition, run what was submitted."""
    subprocess.run(["git", "init", "--quiet", shared_dir], check=True)
    (shared_dir / "lib").mkdir()
    (shared_dir / "lib" / "what.py").write_text("WHAT = 'first'\n")
    script = shared_dir / "train.py"
    script.write_text("import sys; sys.path.insert(0, 'lib'); import what; print(what.WHAT, 1)\n")
    wait = "while not pathlib.Path('runs/go').exists(): time.sleep(0.1)"
    (shared_dir / "first.py").write_text(f"import pathlib, time\n{wait}\n")
    (shared_dir / ".env").write_text("KEY=1\n")
    before = json.loads(run(toolkit, shared_dir, "--detach", "--json", "first.py").stdout)["job_id"]
    options = ("--snapshot",) if way == "snapshot" else ()
    run(toolkit, shared_dir, "--detach", "--after", str(before), *options, "train.py")
    script.write_text(script.read_text().replace("1)", "2)"))
    (shared_dir / "lib" / "what.py").write_text("WHAT = 'second'\n")
    (shared_dir / "runs/go").touch()
    followed = toolkit("logs", "--follow", "train-0001", cwd=shared_dir)
    assert followed.returncode == 0, followed.stderr
    printed = toolkit("logs", "train-0001", cwd=shared_dir).stdout
    assert ("first 1" in printed, "second 2" in printed) == (way == "snapshot", way == "live")
    assert ("has changed since this job was submitted" in printed) == (way == "live")
    again = run(toolkit, shared_dir, "runs/train-0001")
    assert ("first 1" if way == "snapshot" else "second 2") in again.stdout
    assert ("has changed since train-0001" in again.stderr) == (way == "live")
    assert ("left out: .env" in again.stderr) == (way == "snapshot")
    assert not list((shared_dir / "runs").rglob(".env"))
