"""TensorFlow and Ray on the real cluster: their launchers, and the exercises that show them."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left, outcome, processes_of, wait_for

# Their images are 1.1 GB and six minutes of building; in `make test` the golden scripts and
# test_launchers_frameworks.py of tests/unit hold what the launchers write.
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.long]

# Tells what TF_CONFIG says.
TELLING = """\
import json, os
config = json.loads(os.environ["TF_CONFIG"])
told = [config["task"]["index"], os.uname().nodename, config["cluster"]["worker"], os.environ.get("CUDA_VISIBLE_DEVICES")]
print(json.dumps(told), flush=True)
"""
SEEN = "tasks on ['nid001', 'nid002']"
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
print("at", os.environ["RAY_ADDRESS"], "tasks on", sorted(seen), flush=True)
if sys.argv[1] == "fail":
    sys.exit(7)
time.sleep(600)
"""
STRANGER = """\
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("inside", ray.get(ray.remote(lambda: 42).remote()), flush=True)
"""


def run(toolkit: Any, directory: Path, *words: object, seconds: float = 400) -> None:
    done = toolkit("run", *map(str, words), cwd=directory, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("job", ["horovod-tensorflow", "tensorflow-multiworker"])
def test_tensorflow_trains_one_network_on_two_nodes(job, toolkit, tensorflow_image, shared_dir):
    run(toolkit, shared_dir, "--image", tensorflow_image, f"jobs/{job}", "--epochs", 2)
    came_out = outcome(shared_dir, f"{job}-0001")
    results = came_out["results"]
    assert (results["world_size"], results["parameters_equal"]) == (2, True)
    assert results["accuracy"] > 0.8
    assert [len(ranks) for ranks in came_out["ranks"].values()] == [1, 1]
    none_left(shared_dir)


def test_each_worker_is_told_where_all_are_and_has_its_share_of_the_gpus(
    toolkit, tensorflow_image, shared_dir
):
    (shared_dir / "tell.py").write_text(TELLING)
    shape = "--launcher tensorflow --nodes 2 --nodelist nid[001-002] --gpus 2 --ntasks-per-node 2"
    run(toolkit, shared_dir, "--image", tensorflow_image, *shape.split(), "tell.py")
    logs = (shared_dir / "runs/tell-0001/logs").glob("*-nid*.log")
    told = sorted(json.loads(log.read_text().splitlines()[-1]) for log in logs)
    addresses = told[0][2]
    assert len(set(addresses)) == 4
    hosts = [address.split(":")[0] for address in addresses]
    gpus = ["0", "1", "0", "1"]
    assert told == [[index, hosts[index], addresses, gpus[index]] for index in range(4)]


def test_tasks_and_actors_of_ray_work_on_both_nodes(toolkit, ray_image, shared_dir):
    run(toolkit, shared_dir, "--image", ray_image, "--nodelist", "nid[001-002]", "jobs/ray-tasks")
    results = outcome(shared_dir, "ray-tasks-0001")["results"]
    assert (results["tasks"], results["actors"]) == ([0, 1, 4, 9], [1, 1, 1, 1])
    assert results["nodes"] == ["nid001", "nid002"]
    assert (results["tasks_on"], results["actors_on"]) == (results["nodes"], results["nodes"])
    none_left(shared_dir)


def words(image: Path, end: str) -> list[str]:
    shape = "--launcher ray --nodes 2 --nodelist nid[001-002] --cpus-per-task 2"
    return f"run --image {image} {shape} {end}".split()


def begin(toolkit: Any, image: Path, directory: Path) -> None:
    """Begin a run that waits, once Ray works on both nodes."""
    (directory / "use.py").write_text(USING)
    done = toolkit(*words(image, "--detach use.py wait"), cwd=directory)
    assert done.returncode == 0, done.stderr

    def said() -> str:
        return logs_of(directory, "use-0001")

    def is_over() -> bool:
        return SEEN in said() or "Exited with exit code" in said()

    wait_for(is_over, SEEN, seconds=300, says=said)
    assert SEEN in said(), said()


def servers(directory: Path) -> dict[int, str]:
    """The processes that make a Ray, of runs below a directory."""
    names = {pid: name_of(pid) for pid in processes_of(directory)}
    return {pid: name for pid, name in names.items() if name in ("raylet", "gcs_server")}


def test_two_rays_on_the_same_nodes_and_a_stranger_get_nothing_of_each_other(
    toolkit, ray_image, shared_dir
):
    """One waits all the time; the other begins, works and fails beside it, and its exit code comes back. Then the first is cancelled.

    Who has no token, on another node, gets nothing of the first one.
    """

    def seen() -> str:
        return repr(servers(shared_dir))

    begin(toolkit, ray_image, shared_dir)
    # A raylet that starts a worker is two for a moment.
    one = ["gcs_server", "raylet", "raylet"]
    wait_for(lambda: sorted(servers(shared_dir).values()) == one, "one Ray", says=seen)
    rays = servers(shared_dir)
    done = toolkit(*words(ray_image, "use.py fail"), cwd=shared_dir, timeout=400)
    assert done.returncode == 7, done.stdout + done.stderr
    assert SEEN in logs_of(shared_dir, "use-0002")
    failure = outcome(shared_dir, "use-0002")["failure"]
    assert (failure["rank"], failure["host"]) == (0, "nid001")
    wait_for(lambda: servers(shared_dir) == rays, "the first run's servers alone", says=seen)
    (shared_dir / "stranger.py").write_text(STRANGER)
    address = re.findall(r"at (\S+) tasks", logs_of(shared_dir, "use-0001"))[0]
    other = f"run --image {ray_image} --launcher none --nodelist nid003 stranger.py {address}"
    done = toolkit(*other.split(), cwd=shared_dir, timeout=200)
    assert (done.returncode != 0, "inside" in done.stdout) == (True, False), done.stdout
    files = [path for path in (shared_dir / "runs/use-0001").rglob("*") if path.is_file()]
    token = re.compile(r"\b[0-9a-f]{64}\b")
    hidden = {path.name for path in files if token.search(path.read_text(errors="replace"))}
    assert hidden <= {"plan.json", "job.sbatch", "code.json"}, "hashes"

    assert toolkit("cancel", "use-0001", cwd=shared_dir).returncode == 0
    none_left(shared_dir)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
    begin(toolkit, ray_image, shared_dir)
    found = processes_of(shared_dir).items()
    there = [pid for pid, environment in found if environment.get("SLURM_NODEID") == node]
    raylet = next(pid for pid in there if name_of(pid) == "raylet")
    os.kill(raylet if name == "raylet" else parent_of(raylet), signal.SIGKILL)
    followed = toolkit("logs", "-f", "use-0001", cwd=shared_dir, timeout=200)
    assert followed.returncode == code, followed.stdout + followed.stderr
    assert why in logs_of(shared_dir, "use-0001")
    none_left(shared_dir)
