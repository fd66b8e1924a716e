"""The launchers of MPI and Horovod on the real cluster, and what goes wrong there. Where no framework is needed, none is imported."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.ranks import logs_of, none_left, outcome, processes_of, wait_for

pytestmark = pytest.mark.usefixtures("cluster")

JOBS = Path(__file__).parents[2] / "jobs"
# The smallest script that can go on: it counts, and tells how many ranks each count had.
COUNTING = """\
import json, pathlib, sys, time
import horovod.torch as hvd
import torch
hvd.init()

@hvd.elastic.run
def count(state):
    while state.count < int(sys.argv[1]):
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        assert total == hvd.size()
        state.count, state.worlds = state.count + 1, [*state.worlds, hvd.size()]
        if hvd.rank() == 0:
            print("count", state.count, "with", hvd.size(), flush=True)
        if sys.argv[2] == "fail" and state.count == 3:
            while hvd.rank() and not any(pathlib.Path("runs").glob("*/report/nid001-*.ended")):
                time.sleep(0.1)  # rank 0, which fails first, may be the last one to end
            sys.exit(3)
        time.sleep(0.5)
        state.commit()

state = hvd.elastic.TorchState(count=0, worlds=[])
count(state)
if hvd.rank() == 0:
    print(json.dumps({"worlds": state.worlds}), flush=True)
"""


@pytest.fixture(scope="session")
def hello(base: Path) -> Path:
    """The C program of the exercise, compiled by the host's Open MPI, which is the image's."""
    program = base / "hello"
    subprocess.run(["mpicc", "-o", str(program), str(JOBS / "mpi-hello/hello.c")], check=True)
    return program


@pytest.mark.parametrize("launcher", ["mpirun", "auto"])
def test_a_program_in_c(launcher, hello, toolkit, pytorch_image, shared_dir):
    nodes = 3
    shutil.copy(hello, shared_dir / "hello")
    options = ("--launcher", launcher, "--nodes", str(nodes), "--ntasks-per-node", "2")
    done = toolkit("run", "--image", str(pytorch_image), *options, "hello", cwd=shared_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    came_out = outcome(shared_dir, "hello-0001")
    size = 2 * nodes
    assert came_out["results"] == {
        "world_size": size,
        "sum": size * (size - 1) // 2,
        "expected": size * (size - 1) // 2,
    }
    assert [tuple(ranks) for ranks in came_out["ranks"].values()] == [
        (2 * node, 2 * node + 1) for node in range(nodes)
    ]
    none_left(shared_dir)


def test_a_script_of_mpi4py(launch, pytorch_image, shared_dir):
    done = launch(pytorch_image, "--launcher mpi jobs/mpi-hello")
    assert done.returncode == 0, done.stdout + done.stderr
    results = outcome(shared_dir, "mpi-hello-0001")["results"]
    assert (results["world_size"], results["sum"]) == (4, 6)
    assert "Open MPI" in results["mpi"]


@pytest.mark.parametrize("launcher", ["horovod-gloo", "horovod-elastic", "mpirun"])
def test_nothing_is_left_of_a_cancelled_job(launcher, toolkit, launch, pytorch_image, shared_dir):
    (shared_dir / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    options = ("--launcher", launcher, "--nodes", "2")
    assert launch(pytorch_image, "--detach", *options, "wait.py").returncode == 0
    wait_for(
        lambda: logs_of(shared_dir, "wait-0001").count("here") == 2,
        "two ranks",
        says=lambda: logs_of(shared_dir, "wait-0001"),
    )
    assert toolkit("cancel", "wait-0001", cwd=shared_dir).returncode == 0
    none_left(shared_dir)


ELASTIC = (
    *"--launcher horovod-elastic --env HOROVOD_GLOO_TIMEOUT_SECONDS=15 --env HOROVOD_ELASTIC_COOLDOWN=1,3".split(),
)


def rank_process(directory: Path, rank: int) -> int:
    """The process of a rank, which Horovod's driver told its number."""
    for pid, environment in processes_of(directory).items():
        if environment.get("HOROVOD_RANK") == str(rank) and "HOROVOD_HOSTNAME" in environment:
            return pid
    raise LookupError(f"no process of rank {rank} below {directory}")


@pytest.mark.long  # beside it: ranks that all fail
def test_elastic_horovod_goes_on_without_a_rank_takes_it_back_and_survives_a_node(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "count.py").write_text(COUNTING)
    image = ("--image", str(pytorch_image), "--nodes", "1:2", "--nodelist", "nid[001-002]")
    assert (
        toolkit(
            "run", "--detach", *image, *ELASTIC, "count.py", "70", "no", cwd=shared_dir
        ).returncode
        == 0
    )

    def counts() -> list[str]:
        return re.findall(r"count \d+ with (\d)", logs_of(shared_dir, "count-0001"))

    def until(worlds: list[str]) -> None:
        wait_for(
            lambda: [*dict.fromkeys(counts())] and _runs(counts()) == worlds,
            f"{worlds}",
            says=lambda: logs_of(shared_dir, "count-0001"),
        )

    until(["2"])
    os.kill(rank_process(shared_dir, 1), signal.SIGKILL)
    until(["2", "1", "2"])
    assert toolkit("cluster", "cut", "nid002").returncode == 0
    try:
        until(["2", "1", "2", "1"])
        followed = toolkit("logs", "-f", "count-0001", cwd=shared_dir, timeout=120)
    finally:
        toolkit("cluster", "join", "nid002")
    assert followed.returncode == 0, followed.stdout + followed.stderr
    came_out = outcome(shared_dir, "count-0001")
    worlds = [str(world) for world in came_out["results"]["worlds"]]
    assert len(worlds) == 70, "no count is lost, and none is made twice"
    assert _runs(worlds) == ["2", "1", "2", "1"]
    assert "rank 1 on nid002: killed by signal 9" in logs_of(shared_dir, "count-0001")
    none_left(shared_dir)


def _runs(worlds: list[str]) -> list[str]:
    """Each number once for as long as it stays: 2 2 1 1 1 2 is 2 1 2."""
    return [world for index, world in enumerate(worlds) if index == 0 or worlds[index - 1] != world]
