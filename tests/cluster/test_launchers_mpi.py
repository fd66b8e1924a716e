"""The launchers of MPI and Horovod on the real cluster, and what goes wrong there. Where no framework is needed, none is imported."""

from __future__ import annotations

import itertools
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
import json, sys, time
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
def test_a_program_in_c(launcher, hello, launch, pytorch_image, shared_dir):
    shutil.copy(hello, shared_dir / "hello")
    done = launch(pytorch_image, f"--launcher {launcher} --nodes 3 --ntasks-per-node 2 hello")
    assert done.returncode == 0, done.stdout + done.stderr
    came_out = outcome(shared_dir, "hello-0001")
    assert came_out["results"] == {"world_size": 6, "sum": 15, "expected": 15}
    assert [tuple(ranks) for ranks in came_out["ranks"].values()] == [(0, 1), (2, 3), (4, 5)]
    none_left(shared_dir)


def test_a_script_of_mpi4py(launch, pytorch_image, shared_dir):
    done = launch(pytorch_image, "--launcher mpi jobs/mpi-hello")
    assert done.returncode == 0, done.stdout + done.stderr
    results = outcome(shared_dir, "mpi-hello-0001")["results"]
    assert (results["world_size"], results["sum"], "Open MPI" in results["mpi"]) == (4, 6, True)


@pytest.mark.parametrize("launcher", ["horovod-gloo", "horovod-elastic", "mpirun"])
def test_nothing_is_left_of_a_cancelled_job(launcher, toolkit, launch, pytorch_image, shared_dir):
    (shared_dir / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    done = launch(pytorch_image, f"--detach --launcher {launcher} --nodes 2 wait.py")
    assert done.returncode == 0, done.stderr

    def said() -> str:
        return logs_of(shared_dir, "wait-0001")

    wait_for(lambda: said().count("here") == 2, "two ranks", says=said)
    assert toolkit("cancel", "wait-0001", cwd=shared_dir).returncode == 0
    none_left(shared_dir)


def rank_process(directory: Path, rank: int) -> int:
    """The process of a rank, which Horovod's driver told its number."""
    for pid, environment in processes_of(directory).items():
        if environment.get("HOROVOD_RANK") == str(rank) and "HOROVOD_HOSTNAME" in environment:
            return pid
    raise LookupError(f"no process of rank {rank} below {directory}")


@pytest.mark.long  # beside it: an elastic run of torchrun
def test_elastic_horovod_goes_on_without_a_rank_takes_it_back_and_survives_a_node(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "count.py").write_text(COUNTING)
    shape = (
        f"--image {pytorch_image} --launcher horovod-elastic --nodes 1:2 --nodelist nid[001-002]"
    )
    # A rank that is started again imports torch in this time, on a busy machine too.
    waits = "--env HOROVOD_GLOO_TIMEOUT_SECONDS=40 --env HOROVOD_ELASTIC_COOLDOWN=1,3"
    started = toolkit("run", "--detach", *f"{shape} {waits} count.py 70".split(), cwd=shared_dir)
    assert started.returncode == 0, started.stderr

    def log() -> str:
        return logs_of(shared_dir, "count-0001")

    def until(worlds: list[str]) -> None:
        def reached() -> bool:
            return _runs(re.findall(r"count \d+ with (\d)", log())) == worlds

        wait_for(reached, f"{worlds}", says=log)

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
    assert "rank 1 on nid002: killed by signal 9" in log()
    none_left(shared_dir)


def _runs(worlds: list[str]) -> list[str]:
    """Each number once for as long as it stays: 2 2 1 1 1 2 is 2 1 2."""
    return [world for world, _ in itertools.groupby(worlds)]
