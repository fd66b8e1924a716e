"""How runs that fail come out and what `toolkit explain` says: one of each kind of evidence.

`make bench-failures` draws hundreds of failing runs at random, and tests/unit/test_explain.py replays the logs of many more.
"""

from __future__ import annotations

import json

import pytest

from benchmarks.failing import KINDS, Case, script
from tests.cluster.ranks import logs_of, outcome, row

pytestmark = pytest.mark.usefixtures("cluster")

SHAPE = "--nodes 2 --ntasks-per-node 2 --nodelist nid[001-002] --time 5"


@pytest.mark.parametrize("rule", ["bind-missing", "image-missing"])
def test_what_is_gone_when_the_job_starts(rule, toolkit, pytorch_image, shared_dir):
    """It was there when the job was planned."""
    (shared_dir / "data").mkdir()
    (shared_dir / "true.py").write_text("pass\n")
    options = ("--image", str(pytorch_image), "--launcher", "srun", "--bind", "data:/data")
    text = toolkit("run", "--dry-run", *options, "true.py", cwd=shared_dir).stdout
    there = f"{shared_dir}/data" if rule == "bind-missing" else str(pytorch_image)
    (shared_dir / "job.sbatch").write_text(text.replace(there, f"{shared_dir}/gone.sif"))
    logs = shared_dir / "runs/true-0001/logs"
    logs.mkdir(parents=True)
    toolkit("cluster", "exec", "--", "sbatch", "--wait", "job.sbatch", cwd=shared_dir)
    (log,) = logs.glob("*-0-*.log")
    found = json.loads(toolkit("explain", "--json", str(log), cwd=shared_dir).stdout)
    assert found["match"]["rule"] == rule, found


CASES = [
    Case(1, "torchrun", "key-error", 3, "loop", "wait", "functions", 5),
    Case(2, "srun", "argparse", 2, "before-rendezvous", "wait", "class", 5),
    Case(4, "horovod", "exit", 2, "loop", "compute", "class", 5),
    Case(6, "mpi", "segfault", 3, "loop", "wait", "functions", 5),
    Case(7, "none", "killed", 1, "loop", "finish", "class", 5),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.launcher}-{case.kind}")
def test_the_rank_that_failed_first_is_named_with_its_own_words(
    case, pytorch_image, toolkit, launch, shared_dir
):
    (shared_dir / "study.py").write_text(script(case))
    words = f"{SHAPE} --launcher {case.launcher} study.py"
    done = launch(pytorch_image, words, timeout=240)
    found = outcome(shared_dir, "study-0001")
    said = json.loads(toolkit("explain", "--json", cwd=shared_dir).stdout)
    assert done.returncode == found["exit_code"] != 0
    host = f"nid{case.rank // 2 + 1:03}"  # two ranks on each
    assert (found["failure"]["rank"], found["failure"]["host"]) == (case.rank, host)
    assert KINDS[case.kind].expected in f"{said['first']} {said['match']['cause']}"
    assert said["match"].get("rank", case.rank) == case.rank


_TORCH = """\
import os, torch.distributed as dist
dist.init_process_group("gloo", init_method="file:///tmp/alone-%s" % os.environ["RANK"], rank=0, world_size=1)
print("size", dist.get_world_size(), flush=True)
dist.destroy_process_group()
os._exit(0)
"""
# Slurm's variables would have MPI look for the other ranks, in vain.
_WITHOUT = """\
import os
for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI"))]:
    del os.environ[name]
"""
_HOROVOD = "import horovod.torch as hvd\nhvd.init()\nprint('size', hvd.size())\nhvd.shutdown()\n"
_MPI = "from mpi4py import MPI\nprint('size', MPI.COMM_WORLD.size, flush=True)\n"


@pytest.mark.parametrize(
    ("launcher", "text", "size"),
    [
        pytest.param("srun", _TORCH, 1, id="torch"),
        pytest.param("srun", _WITHOUT + _HOROVOD, 1, id="horovod"),
        pytest.param("srun", _WITHOUT + _MPI, 1, id="mpi"),
        pytest.param("mpi", _MPI, 4, id="together"),
    ],
)
def test_ranks_that_never_met_are_told_wherever_a_run_is_shown(
    launcher, text, size, toolkit, launch, pytorch_image, shared_dir
):
    (shared_dir / "train.py").write_text(text)
    done = launch(pytorch_image, f"{SHAPE} --launcher {launcher} train.py", timeout=240)
    assert logs_of(shared_dir, "train-0001").count(f"size {size}") == 4, done.stdout + done.stderr
    found = outcome(shared_dir, "train-0001")
    assert done.returncode == found["exit_code"] == 0
    explained = toolkit("explain", cwd=shared_dir)
    if size == 4:
        assert "succeeded" in explained.stderr
        return
    message = "4 ranks trained alone: world size 1 each"
    assert (found["kind"], found["message"]) == ("apart", message)
    assert row(toolkit, shared_dir, "train-0001")["message"] == message
    assert [
        line for line in done.stderr.splitlines() if line.startswith("apart") and message in line
    ]
    assert f"first      {message}" in explained.stdout
    assert "rule alone" in explained.stdout


CHILDREN = """\
import multiprocessing
def work():
    raise KeyError("label")
if __name__ == "__main__":
    child = multiprocessing.Process(target=work)
    child.start()
    child.join()
"""


def test_a_script_that_ends_well_although_its_ranks_failed_is_not_done(
    toolkit, launch, pytorch_image, shared_dir
):
    """As facebookresearch/ijepa, which does not look at the end of the processes that it forks."""
    (shared_dir / "train.py").write_text(CHILDREN)
    done = launch(pytorch_image, "--launcher spawn --time 5 train.py", timeout=240)
    assert done.returncode == 0
    assert "KeyError: 'label' (train.py, line 3, in work); it exited with 0" in done.stderr
    assert "KeyError" in row(toolkit, shared_dir, "train-0001")["message"]
    assert "KeyError: 'label'" in toolkit("explain", cwd=shared_dir).stdout
