"""`toolkit bench allreduce` and `compare` on the cluster: Gloo, Horovod and MPI in the real image; NCCL needs GPUs, which are not here."""

from __future__ import annotations

import json
import shutil

import pytest

from toolkit.config import shipped

pytestmark = pytest.mark.usefixtures("cluster")

# In place of the job's own libraries: one rank, and one element of one sum that is off.
WRONG = """\
import torch
class Alone:
    name, rank, size, local_rank, device, calls = "alone", 0, 1, 0, torch.device("cpu"), 0
    def add_up(self, buffer):
        self.calls += 1
        if self.calls == 2:
            buffer[-1] += 1
    def gather(self, thing):
        return [thing]
    def leave(self):
        pass
def meet(backend):
    return Alone()
"""


@pytest.mark.parametrize(
    "backends",
    [("gloo",), pytest.param(("gloo", "horovod", "mpi"), marks=pytest.mark.long)],
    ids=len,
)
def test_every_library_adds_up_rightly(backends, toolkit, pytorch_image, shared_dir):
    chosen = [word for name in backends for word in ("--backend", name)]
    words = (
        *f"bench allreduce --image {pytorch_image} --nodes 2 --max-size 64K --json".split(),
        *chosen,
    )
    done = toolkit(*words, cwd=shared_dir, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert [one["backend"] for one in told["measured"]] == list(backends)
    for one in told["measured"]:
        assert (one["ranks"], one["wrong"]) == (2, 0)
        assert [row["bytes"] for row in one["rows"]] == [1024, 4096, 16384, 65536]
        # Two ranks: the bus carries as much as the algorithm.
        assert all(row["bus_gb_per_s"] == row["algorithm_gb_per_s"] > 0 for row in one["rows"])


def test_a_wrong_sum_is_found_and_a_backend_without_its_hardware_refused(
    toolkit, pytorch_image, shared_dir
):
    shutil.copy(shipped("jobs") / "nccl-allreduce" / "train.py", shared_dir)
    (shared_dir / "libraries.py").write_text(WRONG)
    words = f"run --image {pytorch_image} --launcher none train.py --max-size 1024".split()
    done = toolkit(*words, cwd=shared_dir)
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((shared_dir / "runs/train-0001/outcome.json").read_text())["results"]
    assert results["wrong"] == 1
    refused = toolkit(
        "bench", "allreduce", "--image", str(pytorch_image), "--backend", "nccl", cwd=shared_dir
    )
    assert refused.returncode == 64, refused.stderr
    assert "--gpus N" in refused.stderr
