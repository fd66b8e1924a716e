"""Failures that are provoked on the real cluster, one of each way to end, and what `toolkit explain` says of them.

test_first_failure.py has failures under torch; the logs of many more are replayed by tests/unit/test_explain.py.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.usefixtures("cluster")

RANK = """\
import os, sys, time; rank = int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')))
print('rank', rank, 'begins', flush=True)

"""
# A directory of the host that the ranks are not shown: that of the clusters.
ABOVE = "above = os.path.dirname(os.path.dirname(os.getcwd())) + '/c'\n"


class Failure(NamedTuple):
    """A way to fail.

    Attributes:
        rule: that must name it.
        script: Python, after the lines of ``RANK``.
        launcher: by which two ranks are started.
        says: a part of the cause.
        options: more options of `toolkit run`.
        rank: the rank that must be named; None: any.
    """

    rule: str
    script: str
    launcher: str = "srun"
    says: str = ""
    options: tuple[str, ...] = ()
    rank: int | None = None


FAILURES = {
    "one rank raises": Failure(
        "python-exception",
        "if rank == 1: raise ValueError('the label 12 is unknown')\ntime.sleep(60)",
        says="line 4",
        rank=1,
    ),
    "a rank is killed": Failure(
        "killed",
        "import signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)",
        rank=None,
    ),
    "a rank crashes": Failure(
        "crashed", "import ctypes\nif rank == 0: ctypes.string_at(0)\ntime.sleep(60)"
    ),
    "a module is missing": Failure(
        "module-missing",
        "import importlib\nimportlib.import_module('tensorflow')",  # an import statement is refused before the job queues
        says="tensorflow is not in the image",
    ),
    "a program is missing": Failure("command-missing", "", launcher="none", says="nosuchprogram"),
    "a file of the host": Failure(
        "file-missing", ABOVE + "open(above + '/x.csv')", says="not shown /"
    ),
}


def provoked(
    failure: Failure, toolkit: Any, image: Path, directory: Path
) -> subprocess.CompletedProcess[str]:
    """Run it; two ranks on one node, which is faster and as good."""
    (directory / "fails.py").write_text(RANK + textwrap.dedent(failure.script) + "\n")
    words = ("--", "nosuchprogram") if failure.launcher == "none" else ("fails.py",)
    shape = () if failure.launcher == "none" else ("--ntasks-per-node", "2")
    done = toolkit(
        *"run --image".split(),
        str(image),
        "--launcher",
        failure.launcher,
        *shape,
        *failure.options,
        *words,
        cwd=directory,
        timeout=120,
    )
    assert isinstance(done, subprocess.CompletedProcess)
    return done


@pytest.mark.parametrize("name", FAILURES)
def test_a_provoked_failure_is_named(name, toolkit, pytorch_image, shared_dir):
    failure = FAILURES[name]
    done = provoked(failure, toolkit, pytorch_image, shared_dir)
    assert done.returncode not in (0, 64, 65), done.stderr
    (run,) = (shared_dir / "runs").iterdir()
    said = toolkit("explain", "--json", run.name, cwd=shared_dir)
    found = json.loads(said.stdout)
    assert found["match"], (said.stdout, done.stdout + done.stderr)
    assert found["match"]["rule"] == failure.rule, (found, done.stdout + done.stderr)
    assert failure.says in found["match"]["cause"]
    assert failure.rank is None or found["match"]["rank"] == failure.rank
    assert f"cause      {found['match']['cause']}" in done.stderr, (
        "a failed run ends with its explanation"
    )


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
