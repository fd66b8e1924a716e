"""`toolkit stacks`: where the ranks of a run that hangs are, by several launchers, and what stays of it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left, row, wait_for

pytestmark = pytest.mark.usefixtures("cluster")

# Each script has one rank that waits for a file, while the others wait for it.
_READ = """\
import os, pathlib, subprocess, sys, time

def read_shard():
    while not pathlib.Path("go").exists():
        time.sleep(0.05)

def train(rank, reduce):
    print("ready", flush=True)
    if rank == 2:
        read_shard()
    print("sum", reduce(), flush=True)
"""
TORCH = f"""{_READ}
import torch, torch.distributed as dist

def reduce():
    x = torch.ones(1)
    dist.all_reduce(x)
    return int(x)

dist.init_process_group("gloo")
train(dist.get_rank(), reduce)
dist.barrier()
dist.destroy_process_group()
"""
MPI = f"""{_READ}
from mpi4py import MPI

def reduce():
    return MPI.COMM_WORLD.allreduce(1)

train(MPI.COMM_WORLD.rank, reduce)
"""


def start(toolkit: Any, directory: Path, image: Path, *words: str) -> None:
    shape = ("--nodes", "2", "--nodelist", "nid[001-002]", "--ntasks-per-node", "2")
    done = toolkit("run", "--detach", "--image", str(image), *shape, *words, cwd=directory)
    assert done.returncode == 0, done.stderr


def await_ready(directory: Path, run: str, count: int) -> None:
    wait_for(
        lambda: logs_of(directory, run).count("ready") >= count,
        f"{count} that are ready",
        seconds=180,
        says=lambda: logs_of(directory, run)[-4000:],
    )


def answer(toolkit: Any, directory: Path) -> dict[str, Any]:
    done = toolkit("stacks", "--json", cwd=directory)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_rank_that_the_others_wait_for_is_named_and_the_run_goes_on(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "train.py").write_text(TORCH)
    start(toolkit, shared_dir, pytorch_image, "--launcher", "torchrun", "--time", "5", "train.py")
    await_ready(shared_dir, "train-0001", 4)
    # A rank that has printed "ready" may need a moment until it waits.
    waits = re.compile(r"waits in all_reduce \(train\.py:\d+\)")
    given = dict[str, Any]()

    def three_wait() -> bool:
        given.update(answer(toolkit, shared_dir))
        return sum(bool(waits.match(rank["text"])) for rank in given["ranks"]) == 3

    wait_for(three_wait, "three that wait")
    assert [rank["rank"] for rank in given["ranks"]] == [0, 1, 2, 3]
    assert given["ranks"][2]["text"].startswith("is in read_shard (train.py:")
    assert given["missing"] == []
    shown = toolkit("stacks", "--twice", "1", cwd=shared_dir).stdout
    summary = r"ranks 0, 1, 3 wait in all_reduce \(train\.py:\d+\); rank 2 is"
    assert re.search(f"stacks +{summary}", shown)
    assert re.search(r"since .*: (ranks 0-3 have not moved|.*rank 2 has moved)", shown)
    assert "\nranks 0, 1, 3\n" in shown
    assert re.search(r"  read_shard +train\.py:\d", shown)
    assert re.search(summary, toolkit("explain", cwd=shared_dir).stdout)
    (shared_dir / "go").touch()
    followed = toolkit("logs", "-f", cwd=shared_dir, timeout=240)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert logs_of(shared_dir, "train-0001").count("sum 4") == 4
    refused = toolkit("stacks", cwd=shared_dir)
    assert (refused.returncode != 0, "is not running" in refused.stderr) == (True, True)


@pytest.mark.slow("a time limit is whole minutes, and Slurm looks each half of one")
def test_a_job_that_ends_at_its_time_limit_says_where_each_rank_was(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "train.py").write_text(MPI)
    started = time.monotonic()
    start(toolkit, shared_dir, pytorch_image, "--time", "30", "train.py")
    await_ready(shared_dir, "train-0001", 4)
    job = row(toolkit, shared_dir, "train-0001")["job_id"]
    # Slurm's two next looks, 30 s apart, are for the signal and for the limit.
    limit = int(time.monotonic() - started + 40) // 60 + 1
    words = ("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
    assert toolkit("cluster", "exec", "--", *words).returncode == 0
    followed = toolkit("logs", "-f", cwd=shared_dir, timeout=240)
    assert followed.returncode == 124, followed.stderr
    said = json.loads(toolkit("explain", "--json", cwd=shared_dir).stdout)
    assert said["match"]["rule"].startswith("time-limit")
    assert said["first"] == "the time limit was reached"  # and not that Slurm has ended ranks
    assert "ranks 0, 1, 3 wait in allreduce (train.py:" in said["stacks"][0]
    assert "rank 2 is in read_shard (train.py:" in said["stacks"][0]
    none_left(shared_dir)


# Of four tasks one is gone, one is a shell, one waits for its data loader, and one for a program.
MIXED = """\
case $SLURM_PROCID in
0) python3 mixed.py || until [ -e go ]; do sleep 0.1; done ;;
1) echo ready; until [ -e go ]; do sleep 0.1; done ;;
*) python3 mixed.py ;;
esac
"""
MIXED_PYTHON = f"""{_READ}
class Shards:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        print("ready", flush=True)
        read_shard()
        return index

if __name__ == "__main__":
    rank = int(os.environ["SLURM_PROCID"])
    if rank == 0:
        print("ready", flush=True)
        os.kill(os.getpid(), 9)
    if rank == 2:
        from torch.utils.data import DataLoader
        for batch in DataLoader(Shards(), num_workers=1):
            print(batch, flush=True)
    if rank == 3:
        code = "import pathlib, time; print('ready', flush=True)\\n"
        code += "while not pathlib.Path('go').exists(): time.sleep(0.05)"
        subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_each_of_several_states_is_told(toolkit, pytorch_image, shared_dir):
    """Signal handlers of the program's own are in tests/unit/test_report_hook.py."""
    (shared_dir / "mixed.py").write_text(MIXED_PYTHON)
    (shared_dir / "mixed.sh").write_text(MIXED)
    (shared_dir / "mixed.sh").chmod(0o755)
    start(toolkit, shared_dir, pytorch_image, "--launcher", "none", "--time", "5", "./mixed.sh")
    await_ready(shared_dir, "mixed-0001", 4)
    given = answer(toolkit, shared_dir)
    texts = {rank["rank"]: rank["text"] for rank in given["ranks"]}
    assert texts.keys() == {0, 2, 3}
    assert re.fullmatch(r"waits for its data loader \(mixed\.py:\d+\)", texts[2]), texts[2]
    workers = [each for each in given["stacks"] if "read_shard" in str(each["frames"])]
    assert [len(each["others"]) for each in workers] == [1]
    assert given["missing"] == [1]
    assert "task 0 does not answer: gone or stopped" in given["summary"]
    assert "task 1 has written no file" in given["summary"]
    (shared_dir / "go").touch()
    assert toolkit("logs", "-f", cwd=shared_dir, timeout=120).returncode == 0
