"""TensorFlow and Ray on the real cluster: their launchers, and the exercises that show them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left, outcome, processes_of, wait_for

# Their images are 1.1 GB and six minutes of building; in `make test` the golden scripts and
# test_launchers_frameworks.py of tests/unit hold what the launchers write.
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.long]

# Tells what TF_CONFIG says, and the second worker fails.
TELLING = """\
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
print(json.dumps({"config": config, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "host": os.uname().nodename}), flush=True)
if sys.argv[1:] and config["task"]["index"] == 1:
    sys.exit(int(sys.argv[1]))
time.sleep(300 if sys.argv[1:] else 0)
"""
# Uses Ray on both nodes, and then fails, or waits to be ended.
USING = """\
import os, socket, sys, time
import ray
ray.init(log_to_driver=False)
assert sum(node["Alive"] for node in ray.nodes()) == 2
@ray.remote(scheduling_strategy="SPREAD")
def where():  # what looks for Ray in a worker finds its own, beside another job's
    assert os.environ["RAY_ADDRESS"] == ray.get_runtime_context().gcs_address
    return socket.gethostname()
seen = set()
while len(seen) < 2:  # a node that has just come may be passed over
    seen |= set(ray.get([where.remote() for _ in range(4)]))
print("tasks on", sorted(seen), flush=True)
if sys.argv[1] == "fail":
    sys.exit(7)
time.sleep(600)
"""


def run(toolkit: Any, directory: Path, *words: object, seconds: float = 400) -> None:
    done = toolkit("run", *map(str, words), cwd=directory, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr


def test_horovod_trains_in_tensorflow(toolkit, tensorflow_image, shared_dir):
    run(
        toolkit, shared_dir, "--image", tensorflow_image, "jobs/horovod-tensorflow", "--epochs", "2"
    )
    results = outcome(shared_dir, "horovod-tensorflow-0001")["results"]
    assert (results["world_size"], results["parameters_equal"], results["epochs"]) == (2, True, 2)
    assert results["accuracy"] > 0.8
    none_left(shared_dir)


def test_workers_of_tensorflow_train_one_network_on_two_nodes(
    toolkit, tensorflow_image, shared_dir
):
    run(
        toolkit,
        shared_dir,
        "--image",
        tensorflow_image,
        *"jobs/tensorflow-multiworker --epochs 2".split(),
    )
    came_out = outcome(shared_dir, "tensorflow-multiworker-0001")
    assert (came_out["results"]["world_size"], came_out["results"]["parameters_equal"]) == (2, True)
    assert came_out["results"]["accuracy"] > 0.8
    assert [len(ranks) for ranks in came_out["ranks"].values()] == [1, 1]
    none_left(shared_dir)


def test_each_worker_is_told_where_all_are_and_has_its_share_of_the_gpus(
    toolkit, tensorflow_image, shared_dir
):
    (shared_dir / "tell.py").write_text(TELLING)
    shape = (
        *"--launcher tensorflow --nodes".split(),
        2,
        *"--nodelist nid[001-002] --gpus".split(),
        2,
        "--ntasks-per-node",
        2,
    )
    run(toolkit, shared_dir, "--image", tensorflow_image, *shape, "tell.py")
    logs = sorted((shared_dir / "runs/tell-0001/logs").glob("*-nid*.log"))
    told = sorted(
        (json.loads(log.read_text().splitlines()[-1]) for log in logs),
        key=lambda one: int(one["config"]["task"]["index"]),
    )
    assert [one["config"]["task"]["index"] for one in told] == [0, 1, 2, 3]
    assert len({json.dumps(one["config"]["cluster"]) for one in told}) == 1, "all are told the same"
    addresses = told[0]["config"]["cluster"]["worker"]
    assert len(set(addresses)) == 4
    assert [one["host"] for one in told] == [address.split(":")[0] for address in addresses]
    assert [one["gpus"] for one in told] == ["0", "1", "0", "1"]


def test_tasks_and_actors_of_ray_work_on_both_nodes(toolkit, ray_image, shared_dir):
    run(toolkit, shared_dir, "--image", ray_image, "--nodelist", "nid[001-002]", "jobs/ray-tasks")
    results = outcome(shared_dir, "ray-tasks-0001")["results"]
    assert results["tasks"] == [0, 1, 4, 9]
    assert results["actors"] == [1, 1, 1, 1]
    assert results["nodes"] == ["nid001", "nid002"]
    assert (results["tasks_on"], results["actors_on"]) == (results["nodes"], results["nodes"])
    none_left(shared_dir)


def test_two_rays_on_the_same_nodes_know_nothing_of_each_other_and_leave_nothing(
    toolkit, ray_image, shared_dir
):
    """One waits all the time; the other begins, works and fails beside it, and its exit code comes back. Then the first is cancelled."""
    (shared_dir / "use.py").write_text(USING)
    options = f"--image {ray_image} --launcher ray --nodes 2 --nodelist nid[001-002] --cpus-per-task 2".split()
    assert toolkit("run", "--detach", *options, "use.py", "wait", cwd=shared_dir).returncode == 0
    waits = "tasks on ['nid001', 'nid002']"
    until_said(shared_dir, "use-0001", waits)
    # A raylet that starts a worker is two for a moment.
    wait_for(
        lambda: sorted(servers(shared_dir).values()) == ["gcs_server", "raylet", "raylet"],
        "the servers of one Ray",
        says=lambda: repr(servers(shared_dir)),
    )
    rays = servers(shared_dir)

    done = toolkit("run", *options, "use.py", "fail", cwd=shared_dir, timeout=400)
    assert done.returncode == 7, done.stdout + done.stderr
    assert waits in logs_of(shared_dir, "use-0002")
    failure = outcome(shared_dir, "use-0002")["failure"]
    assert (failure["rank"], failure["host"]) == (0, "nid001")
    wait_for(
        lambda: servers(shared_dir) == rays,
        "the servers of the first run alone",
        says=lambda: repr(servers(shared_dir)),
    )

    assert toolkit("cancel", "use-0001", cwd=shared_dir).returncode == 0
    none_left(shared_dir)


def until_said(directory: Path, name: str, text: str) -> None:
    """Until a run that goes on has said something."""
    wait_for(
        lambda: (
            text in logs_of(directory, name) or "Exited with exit code" in logs_of(directory, name)
        ),
        text,
        seconds=300,
        says=lambda: logs_of(directory, name),
    )
    assert text in logs_of(directory, name), logs_of(directory, name)


def servers(directory: Path) -> dict[int, str]:
    """The processes that make a Ray, of runs below a directory."""
    names = {pid: name_of(pid) for pid in processes_of(directory)}
    return {pid: name for pid, name in names.items() if name in ("raylet", "gcs_server")}


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("name", "node", "code", "why"),
    [
        ("raylet", "1", 1, "Some Ray subprocesses exited unexpectedly"),
        ("ray", "0", 137, "Ray ended before the script"),
    ],
)
def test_a_run_whose_ray_is_killed_on_one_node_ends_says_so_and_leaves_nothing(
    name, node, code, why, toolkit, ray_image, shared_dir
):
    (shared_dir / "use.py").write_text(USING)
    options = f"--image {ray_image} --launcher ray --nodes 2 --nodelist nid[001-002] --cpus-per-task 2".split()
    assert toolkit("run", "--detach", *options, "use.py", "wait", cwd=shared_dir).returncode == 0
    until_said(shared_dir, "use-0001", "tasks on")
    there = {
        pid
        for pid, environment in processes_of(shared_dir).items()
        if environment.get("SLURM_NODEID") == node
    }
    raylet = next(pid for pid in there if name_of(pid) == "raylet")
    os.kill(raylet if name == "raylet" else parent_of(raylet), signal.SIGKILL)
    followed = toolkit("logs", "-f", "use-0001", cwd=shared_dir, timeout=200)
    assert followed.returncode == code, followed.stdout + followed.stderr
    assert why in logs_of(shared_dir, "use-0001")
    none_left(shared_dir)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
