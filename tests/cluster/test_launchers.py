"""Each launcher on the real cluster, and what goes wrong there. Most scripts import no framework: it is the launcher that is tested."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left, outcome, rank_process, wait_for

pytestmark = pytest.mark.usefixtures("cluster")

# Tells in one line what a rank was told.
TELL = """\
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
         "INIT_METHOD")
told = {name: os.environ[name] for name in names if name in os.environ}
sys.stdout.write(json.dumps({"host": os.uname().nodename, "argv": sys.argv[1:], **told}) + "\\n")
"""
# The smallest script that meets: as a script of a user would, by INIT_METHOD or by what is the
# default.
MEET = """\
import os, torch, torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=os.environ["INIT_METHOD"], rank=rank, world_size=world)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
print(f"sum {total.item():g} by {os.environ['INIT_METHOD'].split(':')[0]}, MASTER_ADDR {os.environ.get('MASTER_ADDR')}", flush=True)
"""
FORKING = """\
import argparse, os, pathlib, sys, time
from torch.multiprocessing import spawn
parser = argparse.ArgumentParser()
parser.add_argument("--world-size", type=int)
parser.add_argument("--rank", type=int)
parser.add_argument("--nprocs", type=int)
parser.add_argument("--dist-url")
parser.add_argument("--multiprocessing-distributed", action="store_true")
def main(local_rank, args):
    number = args.rank * args.nprocs + local_rank
    world = args.world_size * args.nprocs
    print(f"rank {number} of {world} meets at {args.dist_url} forked {args.multiprocessing_distributed}", flush=True)
    pathlib.Path(f"forked-{number}").touch()
    if number == 2:
        while len(list(pathlib.Path().glob("forked-*"))) < world:
            time.sleep(0.1)
        os._exit(3)
    time.sleep(300)
if __name__ == "__main__":
    args = parser.parse_args()
    spawn(main, args=(args,), nprocs=args.nprocs)
"""
# Listens where the next job would meet, by the number that it will have.
SQUATTER = """\
import os, socket, time
port = 61000 + (int(os.environ["SLURM_JOB_ID"]) + 1) % 4536
server = socket.create_server(("", port))
print("listens", port, flush=True)
time.sleep(300)
"""


def told(directory: Path, name: str) -> list[dict[str, Any]]:
    """What all ranks of a run said with TELL."""
    text = "".join(log.read_text() for log in (directory / "runs" / name / "logs").glob("*-*.log"))
    return [json.loads(line) for line in re.findall('{"host".*}', text)]


def test_srun_tells_each_rank_who_it_is_but_for_what_is_set(launch, pytorch_image, shared_dir):
    (shared_dir / "tell.py").write_text(TELL)
    options = "--launcher srun --nodes 2 --ntasks-per-node 2 --env LOCAL_WORLD_SIZE=mine tell.py"
    done = launch(pytorch_image, options)
    assert done.returncode == 0, done.stderr
    names = ("LOCAL_RANK", "NODE_RANK", "host", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_WORLD_SIZE")
    ranks = {one["RANK"]: [one[name] for name in names] for one in told(shared_dir, "tell-0001")}
    common = ("4", "nid001", "mine")
    assert ranks == {
        "0": ["0", "0", "nid001", *common],
        "1": ["1", "0", "nid001", *common],
        "2": ["0", "1", "nid002", *common],
        "3": ["1", "1", "nid002", *common],
    }


@pytest.mark.parametrize("init", ["tcp", "file"])
def test_ranks_of_srun_meet_without_the_environment(init, launch, pytorch_image, shared_dir):
    (shared_dir / "meet.py").write_text(MEET)
    done = launch(pytorch_image, f"--launcher srun --init {init} --nodes 2 meet.py", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"sum 3 by {init}, MASTER_ADDR None") == 2
    assert not list((shared_dir / "runs/meet-0001").glob("init.*")), "the file is gone with the run"


def test_a_script_that_forks_gets_its_arguments_and_its_first_failure_is_the_runs(
    launch, pytorch_image, shared_dir
):
    (shared_dir / "forking.py").write_text(FORKING)
    done = launch(pytorch_image, "--nodes 2 --ntasks-per-node 2 forking.py", timeout=150)
    assert "spawn (forking.py calls mp.spawn)" in done.stderr
    assert done.returncode == 3, done.stdout + done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4 meets at tcp://nid001:6" in done.stdout
    assert "forked True" in done.stdout
    assert "rank 2 on nid002: exit code 3" in done.stderr
    none_left(shared_dir)


def test_each_node_starts_as_many_ranks_as_it_has_gpus(launch, pytorch_image, shared_dir):
    (shared_dir / "tell.py").write_text(TELL)
    done = launch(pytorch_image, "--launcher torchrun --gpus 2,1 tell.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes with 2 and 1 GPUs" in done.stderr
    ranks = told(shared_dir, "tell-0001")
    assert sorted(one["RANK"] for one in ranks) == ["0", "1", "2"]
    assert sorted(one["LOCAL_WORLD_SIZE"] for one in ranks) == ["1", "2", "2"]
    assert {one["WORLD_SIZE"] for one in ranks} == {"3"}


def test_two_jobs_on_one_node_meet_at_two_ports_and_a_port_that_is_taken_is_passed_over(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "squatter.py").write_text(SQUATTER)
    (shared_dir / "tell.py").write_text(TELL + "import time; time.sleep(3)\n")
    words = f"run --detach --image {pytorch_image} --nodelist nid001 --ntasks-per-node".split()
    assert toolkit(*words, "1", "--launcher", "none", "squatter.py", cwd=shared_dir).returncode == 0
    wait_for(lambda: "listens" in logs_of(shared_dir, "squatter-0001"), "the squatter")
    taken = int(logs_of(shared_dir, "squatter-0001").split()[-1])
    try:
        for launcher in ("srun", "torchrun"):
            done = toolkit(*words, "2", "--launcher", launcher, "tell.py", cwd=shared_dir)
            assert done.returncode == 0, done.stderr
        for run in ("tell-0001", "tell-0002"):
            followed = toolkit("logs", "-f", run, cwd=shared_dir)
            assert followed.returncode == 0, followed.stdout + followed.stderr
            ranks = sorted((one["RANK"], one["WORLD_SIZE"]) for one in told(shared_dir, run))
            assert ranks == [("0", "2"), ("1", "2")]
    finally:
        toolkit("cancel", "squatter-0001", cwd=shared_dir)
    assert {int(one["MASTER_PORT"]) for one in told(shared_dir, "tell-0001")} == {taken + 1}


def test_a_killed_rank_starts_again_from_the_snapshot(toolkit, launch, pytorch_image, shared_dir):
    job = ("jobs/digits-ddp-elastic", "--epochs", "14", "--pause", "0.5")
    options = ("--nodes", "2", "--ntasks-per-node", "1", "--max-restarts", "2")
    assert launch(pytorch_image, "--detach", *options, *job).returncode == 0
    name = "digits-ddp-elastic-0001"
    wait_for(lambda: "epoch  3" in logs_of(shared_dir, name), "the third epoch", seconds=120)
    subprocess.run(["kill", "-KILL", str(rank_process(shared_dir, 1))], check=True)
    done = toolkit("logs", "-f", name, cwd=shared_dir, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    results = outcome(shared_dir, name)["results"]
    assert results["resumed_after"] >= 3, "not from 0"
    assert results["accuracy"] >= 0.93
    assert (results["world_size"], results["parameters_equal"]) == (2, True)
    none_left(shared_dir)


@pytest.mark.long  # beside it: a killed rank that starts again
def test_an_elastic_run_outlives_a_node(toolkit, launch, pytorch_image, shared_dir):
    job = ("jobs/digits-ddp-elastic", "--epochs", "300", "--pause", "0.4")
    options = ("--nodes", "1:2", "--ntasks-per-node", "1")
    assert launch(pytorch_image, "--detach", *options, *job).returncode == 0
    name = "digits-ddp-elastic-0001"

    def log() -> str:
        return logs_of(shared_dir, name)

    try:
        wait_for(lambda: log().count("ranks 2") >= 3, "two ranks to train", seconds=240, says=log)
        toolkit("cluster", "cut", "nid002")
        lost = "round 1: a node was lost, 1 of this job's are left"
        wait_for(lambda: lost in log(), "the loss", seconds=90, says=log)
        resumed = r"starts after epoch ([3-9]|\d\d)"
        wait_for(lambda: re.search(resumed, log()), "the snapshot's epoch", seconds=90, says=log)
        queue = toolkit("cluster", "exec", "--", "squeue", "--noheader", "--format=%j %N").stdout
        jobs = [line for line in queue.splitlines() if line.startswith("digits-ddp-elastic")]
        assert jobs == ["digits-ddp-elastic nid001"], "the same job, and no other waits"
    finally:
        toolkit("cancel", name, cwd=shared_dir)
        toolkit("cluster", "join", "nid002")
    none_left(shared_dir)
