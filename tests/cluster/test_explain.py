"""What `toolkit explain` says where something is gone when the job starts, and of a healthy run.

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
