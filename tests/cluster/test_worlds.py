"""Ranks that never met: the outcome says in how many groups they trained, wherever they say how many they are."""

from __future__ import annotations

import json

import pytest

from tests.cluster.ranks import logs_of

pytestmark = pytest.mark.usefixtures("cluster")

_TORCH = """\
import os, torch.distributed as dist
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo", {})
print("size", dist.get_world_size(), flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""
ALONE = _TORCH.format('init_method="file:///tmp/alone-%d" % rank, rank=0, world_size=1')
# Each node has a "localhost", where only its own ranks meet.
ON_NODES = _TORCH.format('init_method="tcp://localhost:29400", rank=local, world_size=2')
HOROVOD = """\
import horovod.torch as hvd
hvd.init()
print("size", hvd.size(), flush=True)
hvd.shutdown()
"""
# Slurm's variables would have MPI look for the other ranks, in vain.
_WITHOUT = """\
import os
for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI"))]:
    del os.environ[name]
"""
MPI = "from mpi4py import MPI\nprint('size', MPI.COMM_WORLD.size, flush=True)\n"
CASES = [
    ("srun", ALONE, "4 ranks trained alone: world size 1 each", "size 1"),
    ("srun", ON_NODES, "4 ranks trained in 2 groups of 2, which never met", "size 2"),
    ("srun", _WITHOUT + HOROVOD, "4 ranks trained alone: world size 1 each", "size 1"),
    ("mpi", MPI, "", "size 4"),
    ("srun", _WITHOUT + MPI, "4 ranks trained alone: world size 1 each", "size 1"),
    ("none", _WITHOUT + MPI, "", "size 1"),  # tasks of their own are on purpose
]
_IDS = ["alone", "nodes", "horovod-alone", "mpi", "mpi-alone", "on-purpose"]


@pytest.mark.parametrize(("launcher", "script", "message", "printed"), CASES, ids=_IDS)
def test_the_outcome_says_in_how_many_groups_the_ranks_trained(
    launcher, script, message, printed, toolkit, pytorch_image, shared_dir
):
    (shared_dir / "train.py").write_text(script)
    shape = ("--nodes", "2", "--ntasks-per-node", "2", "--nodelist", "nid[001-002]", "--time", "5")
    words = ("--image", str(pytorch_image), "--launcher", launcher, *shape, "train.py")
    done = toolkit("run", *words, cwd=shared_dir, timeout=240)
    assert logs_of(shared_dir, "train-0001").count(printed) == 4, done.stdout + done.stderr
    outcome = json.loads((shared_dir / "runs/train-0001/outcome.json").read_text())
    assert done.returncode == outcome["exit_code"] == 0
    assert outcome.get("message", "") == message
    assert outcome.get("kind", "ok") == ("apart" if message else "ok")
    (row,) = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert row["message"] == message
    word = "apart" if message else "done"
    assert any(line.startswith(word) and message in line for line in done.stderr.splitlines())
    explained = toolkit("explain", cwd=shared_dir)
    if message:
        assert f"first      {message}" in explained.stdout
        assert "rule alone" in explained.stdout
    else:
        assert "succeeded" in explained.stderr


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
    toolkit, pytorch_image, shared_dir
):
    """As facebookresearch/ijepa, which does not look at the end of the processes that it forks."""
    (shared_dir / "train.py").write_text(CHILDREN)
    words = ("--image", str(pytorch_image), "--launcher", "spawn", "--time", "5", "train.py")
    done = toolkit("run", *words, cwd=shared_dir, timeout=240)
    assert done.returncode == 0
    assert "KeyError: 'label' (train.py, line 3, in work); it exited with 0" in done.stderr
    (row,) = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert "KeyError" in row["message"]
    assert "KeyError: 'label'" in toolkit("explain", cwd=shared_dir).stdout
