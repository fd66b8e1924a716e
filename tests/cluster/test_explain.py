"""Failures that are provoked on the real cluster, one of each way to end, and what `toolkit explain` says of them.

test_first_failure.py has failures under torch; the logs of many more are replayed by tests/unit/test_explain.py.
"""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("cluster")

RANK = """\
import os, sys, time; rank = int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')))
print('rank', rank, 'begins', flush=True)

"""
# Rule, script after the lines of ``RANK``, a part of the cause, and the rank that is named.
FAILURES = {
    "a rank raises": (
        "python-exception",
        "if rank == 1: raise ValueError('the label 12 is unknown')\ntime.sleep(60)",
        "line 4",
        1,
    ),
    "a rank crashes": (
        "crashed",
        "import ctypes\nif rank == 0: ctypes.string_at(0)\ntime.sleep(60)",
        "",
        0,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_provoked_failure_is_named(name, toolkit, launch, pytorch_image, shared_dir):
    rule, script, says, rank = FAILURES[name]
    (shared_dir / "fails.py").write_text(RANK + script + "\n")
    done = launch(pytorch_image, "--launcher srun --ntasks-per-node 2 fails.py")
    assert done.returncode not in (0, 64, 65), done.stderr
    found = json.loads(toolkit("explain", "--json", "fails-0001", cwd=shared_dir).stdout)["match"]
    assert (found["rule"], found["rank"]) == (rule, rank), done.stdout + done.stderr
    assert says in found["cause"]
    assert f"cause      {found['cause']}" in done.stderr, "a failed run ends with its explanation"


def test_what_is_gone_when_the_job_starts(toolkit, pytorch_image, shared_dir):
    """Both were there when the job was planned."""
    for what, rule in (("bind", "bind-missing"), ("image", "image-missing")):
        place = shared_dir / what
        (place / "data").mkdir(parents=True)
        (place / "true.py").write_text("pass\n")
        options = ("--image", str(pytorch_image), "--launcher", "srun", "--bind", "data:/data")
        text = toolkit("run", "--dry-run", *options, "true.py", cwd=place).stdout
        text = (
            text.replace(f"{place}/data", f"{place}/gone")
            if what == "bind"
            else text.replace(str(pytorch_image), f"{place}/gone.sif")
        )
        (place / "job.sbatch").write_text(text)
        (place / "runs/true-0001/logs").mkdir(parents=True)
        toolkit("cluster", "exec", "--", "sbatch", "--wait", "job.sbatch", cwd=place)
        (log,) = (place / "runs/true-0001/logs").glob("*-0-*.log")
        found = json.loads(toolkit("explain", "--json", str(log), cwd=place).stdout)
        assert found["match"]["rule"] == rule, found


def test_a_healthy_run_has_nothing_to_explain(toolkit, launch, pytorch_image, shared_dir):
    (shared_dir / "well.py").write_text(RANK + "print('loss 0.3, 0 errors')\n")
    done = launch(pytorch_image, "--launcher srun --ntasks-per-node 2 well.py")
    assert done.returncode == 0, done.stderr
    assert "succeeded" in toolkit("explain", cwd=shared_dir).stderr
