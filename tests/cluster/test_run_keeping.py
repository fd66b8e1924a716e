"""Runs on a real Slurm: found from anywhere, repeated as they were, and removed once they have ended."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import Toolkit

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


def test_a_run_is_found_by_its_job_from_elsewhere_and_removed(toolkit: Toolkit, shared_dir: Path) -> None:
    here, there = shared_dir / "here", shared_dir / "there"
    here.mkdir()
    there.mkdir()
    (here / "sleep.py").write_text("import time; print('up', flush=True); time.sleep(600)\n")
    job = waiting(toolkit, here, "sleep.py")
    until = time.monotonic() + 30
    while "up" not in (done := toolkit("logs", str(job), cwd=there)).stdout:
        assert time.monotonic() < until, done.stderr
        time.sleep(0.5)
    listed = json.loads(toolkit("ps", "--all-directories", "--json", cwd=there).stdout)
    assert [row["state"] for row in listed if row["directory"].startswith(str(here))] == ["RUNNING"]
    refused = toolkit("rm", str(job), cwd=there)
    assert (refused.returncode, "has not ended" in refused.stderr) == (75, True)
    assert (here / "runs" / "sleep-0001" / "plan.json").exists()
    removed = toolkit("rm", "--cancel", str(job), cwd=there)
    assert removed.returncode == 0, removed.stderr
    assert list((here / "runs").iterdir()) == []
