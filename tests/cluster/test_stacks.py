"""`toolkit stacks`: where the ranks of a run that hangs are, by several launchers, and what stays of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left, wait_for

pytestmark = pytest.mark.usefixtures("cluster")

# Each script has one rank that waits for a file, while the others wait for it.
_READ = """\
import os, pathlib, sys, time

def read_shard():
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
"""
SCRIPTS = {
    "torchrun": f"""{_READ}
import torch, torch.distributed as dist

def train():
    print("ready", flush=True)
    if dist.get_rank() == 2:
        read_shard()
    x = torch.ones(1)
    dist.all_reduce(x)
    print("sum", int(x), flush=True)

dist.init_process_group("gloo")
train()
dist.barrier()
dist.destroy_process_group()
""",
    "horovod": f"""{_READ}
import torch, horovod.torch as hvd

def train():
    print("ready", flush=True)
    if hvd.rank() == 2:
        read_shard()
    print("sum", int(hvd.allreduce(torch.ones(1), op=hvd.Sum)), flush=True)

hvd.init()
train()
hvd.shutdown()
""",
    "mpi": f"""{_READ}
from mpi4py import MPI

def train():
    print("ready", flush=True)
    if MPI.COMM_WORLD.rank == 2:
        read_shard()
    print("sum", MPI.COMM_WORLD.allreduce(1), flush=True)

train()
""",
}
_COLLECTIVE = {"torchrun": "all_reduce"}


def start(toolkit: Any, directory: Path, image: Path, *words: str) -> None:
    shape = ("--nodes", "2", "--ntasks-per-node", "2", "--nodelist", "nid[001-002]")
    done = toolkit("run", "--detach", "--image", str(image), *shape, *words, cwd=directory)
    assert done.returncode == 0, done.stderr


def await_word(directory: Path, run: str, word: str, count: int) -> None:
    wait_for(
        lambda: logs_of(directory, run).count(word) >= count,
        f"{count} times {word!r}",
        seconds=180,
        says=lambda: logs_of(directory, run)[-4000:],
    )


def standing(answer: dict[str, Any]) -> list[str]:
    return [rank["text"] for rank in answer["ranks"]]


@pytest.mark.parametrize(
    "launcher", ["torchrun", "mpi", pytest.param("horovod", marks=pytest.mark.long)]
)
def test_the_rank_that_the_others_wait_for_is_named_and_the_run_goes_on(
    launcher, toolkit, pytorch_image, shared_dir
):
    (shared_dir / "train.py").write_text(SCRIPTS[launcher])
    start(toolkit, shared_dir, pytorch_image, "--time", "5", "--launcher", launcher, "train.py")
    await_word(shared_dir, "train-0001", "ready", 4)
    name = _COLLECTIVE.get(launcher, "allreduce")
    waits = re.compile(rf"waits in {name} \(train\.py:\d+\)")

    def answer() -> dict[str, Any]:
        done = toolkit("stacks", "--json", "train-0001", cwd=shared_dir)
        assert done.returncode == 0, done.stderr
        given: dict[str, Any] = json.loads(done.stdout)
        return given

    # A rank that has printed "ready" may need a moment until it waits.
    wait_for(lambda: sum(map(bool, map(waits.match, standing(answer())))) == 3, "three that wait")
    given = answer()
    assert [rank["rank"] for rank in given["ranks"]] == [0, 1, 2, 3]
    assert given["ranks"][2]["text"].startswith("is in read_shard (train.py:")
    assert given["missing"] == []
    shown = toolkit("stacks", "--twice", "1", cwd=shared_dir).stdout
    assert re.search(rf"stacks +ranks 0, 1, 3 wait in {name} \(train\.py:\d+\); rank 2 is", shown)
    assert re.search(r"since .*: (ranks 0-3 have not moved|.*rank 2 has moved)", shown)
    assert "\nranks 0, 1, 3\n" in shown
    assert re.search(r"  read_shard +train\.py:\d", shown)
    running = toolkit("explain", cwd=shared_dir).stdout
    assert f"ranks 0, 1, 3 wait in {name}" in running
    (shared_dir / "go").touch()
    followed = toolkit("logs", "-f", cwd=shared_dir, timeout=240)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert logs_of(shared_dir, "train-0001").count("sum 4") == 4
    refused = toolkit("stacks", cwd=shared_dir)
    assert refused.returncode != 0
    assert "is not running" in refused.stderr


@pytest.mark.slow("a time limit is whole minutes, and Slurm looks each half of one")
def test_a_job_that_ends_at_its_time_limit_says_where_each_rank_was(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "train.py").write_text(SCRIPTS["mpi"])
    start(toolkit, shared_dir, pytorch_image, "--time", "1", "train.py")
    followed = toolkit("logs", "-f", cwd=shared_dir, timeout=240)
    assert followed.returncode == 124, followed.stderr
    said = json.loads(toolkit("explain", "--json", cwd=shared_dir).stdout)
    assert said["match"]["rule"].startswith("time-limit")
    assert said["first"] == "the time limit was reached"  # and not that Slurm has ended ranks
    assert "ranks 0, 1, 3 wait in allreduce (train.py:" in said["stacks"][0]
    assert "rank 2 is in read_shard (train.py:" in said["stacks"][0]
    none_left(shared_dir)


# Of six tasks one is gone, one is a shell, one waits for its data loader, one for a program, and two
# do something of their own with the signal.
MIXED_SHELL = """\
case $SLURM_PROCID in
0) python3 mixed.py || until [ -e go ]; do sleep 0.1; done ;;
1) echo ready; until [ -e go ]; do sleep 0.1; done ;;
*) python3 mixed.py ;;
esac
"""
MIXED = """\
import faulthandler, os, pathlib, signal, subprocess, sys, time

def read_shard(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.05)

class Shards:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        print("ready", flush=True)
        read_shard("go")
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
    if rank == 4:
        signal.signal(signal.SIGURG, lambda *_: print("own handler", flush=True))
    if rank == 5:
        faulthandler.register(signal.SIGURG, file=open("own", "w"), chain=False)
    if rank > 3:
        print("ready", flush=True)
        read_shard("go")
"""


def test_each_of_several_states_is_told_and_handlers_of_the_programs_stay(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "mixed.py").write_text(MIXED)
    (shared_dir / "mixed.sh").write_text(MIXED_SHELL)
    (shared_dir / "mixed.sh").chmod(0o755)
    words = ("--launcher", "none", "--time", "5", "--ntasks-per-node", "3", "./mixed.sh")
    start(toolkit, shared_dir, pytorch_image, *words)
    await_word(shared_dir, "mixed-0001", "ready", 6)
    given = json.loads(toolkit("stacks", "--json", cwd=shared_dir).stdout)
    texts = {rank["rank"]: rank["text"] for rank in given["ranks"]}
    assert texts.keys() == {0, 2, 3, 4, 5}
    assert re.fullmatch(r"waits for its data loader \(mixed\.py:\d+\)", texts[2]), texts[2]
    workers = [each for each in given["stacks"] if "read_shard" in str(each["frames"])]
    assert [len(each["others"]) for each in workers] == [1]
    assert given["missing"] == [1]
    assert "tasks 0, 4, 5 do not answer: gone or stopped" in given["summary"]
    assert "task 1 has written no file" in given["summary"]
    await_word(shared_dir, "mixed-0001", "own handler", 1)
    assert "mixed.py" in (shared_dir / "own").read_text()
    (shared_dir / "go").touch()
    assert toolkit("logs", "-f", cwd=shared_dir, timeout=120).returncode == 0
