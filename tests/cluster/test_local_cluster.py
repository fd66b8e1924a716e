"""The local cluster is a real Slurm: nodes of their own, failures that look like failures, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import outcome, wait_for


def left_of(directory: Path) -> list[str]:
    """Every process and mount here that belongs to a cluster; its daemons name it in their environment."""
    found = []
    setting = f"SLURM_CONF={directory}/etc/slurm.conf\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            named = (
                setting in (entry / "environ").read_bytes() or f"{directory}\0".encode() in words
            )
            if named and int(entry.name) != os.getpid():
                found.append(f"{entry.name} {words!r}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [line for line in mounts if str(directory) in line]


@pytest.fixture
def scratch(toolkit: Any, toolkit_env: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """`toolkit cluster` with a cluster called `scratch`, taken down after the test whatever came."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "scratch"}
    yield lambda *words, **more: toolkit("cluster", *words, **{"env": env, **more})
    toolkit("cluster", "down", env=env)


@pytest.fixture
def directory(toolkit_env: dict[str, str]) -> Path:
    """Of the cluster `scratch`."""
    return Path(toolkit_env["TOOLKIT_CLUSTER_DIR"], "scratch")


def status(call: Callable[..., Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(call("status", "--json").stdout)
    return data


def test_a_cluster_from_up_to_down(scratch, directory, tmp_path):
    """Up twice, with the directories below /tmp that its nodes share; the controller dies; nothing stays."""
    assert str(tmp_path).startswith("/tmp/"), "pytest's own directory"
    for name in ("here", "asked for", "neither"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    interfaces = sorted(Path("/sys/class/net").iterdir())
    share, here = ("--share", str(tmp_path / "asked for")), tmp_path / "here"
    up = scratch("up", *share, cwd=here)
    assert (up.returncode, "scratch is up" in up.stdout) == (0, True), up.stderr
    first = json.loads((directory / "run/started.json").read_text())
    second = scratch("up", *share, cwd=here)
    assert (second.returncode, "is up already" in second.stdout) == (0, True)
    for words, code, message in (
        (("--nodes", "1"), 83, "another shape"),
        (("--share", str(tmp_path / "neither")), 83, "its nodes do not see"),
        (("--share", "/tmp"), 64, "each node has its own /tmp"),
    ):
        other = scratch("up", *words, cwd=here)
        assert (other.returncode, message in other.stderr) == (code, True), other.stderr
    assert json.loads((directory / "run/started.json").read_text()) == first
    ask = 'for d in here "asked for" neither; do [ -e "$0/$d/file" ] && echo "$d"; done'
    seen = scratch(*"exec -- srun -N2 bash -c".split(), ask, str(tmp_path), cwd=here)
    wanted = ["asked for", "asked for", "here", "here"]
    assert sorted(seen.stdout.splitlines()) == wanted, seen.stderr
    assert {str(here), str(tmp_path / "asked for")} <= set(status(scratch)["shared"])

    assert scratch("exec", "--", "pkill", "-9", "-x", "slurmctld(-wlm)?").returncode == 0
    wait_for(lambda: not status(scratch)["controller"], "the controller to be missed")
    assert left_of(directory)
    down = scratch("down")
    assert (down.returncode, left_of(directory), directory.exists()) == (0, [], False), down.stderr
    assert sorted(Path("/sys/class/net").iterdir()) == interfaces
    again = scratch("down")
    assert (again.returncode, "was not up" in again.stdout) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_of_an_up_that_was_ended_nothing_stays(number, scratch, directory, toolkit_env):
    """Killed, its processes go by themselves, if it was not wholly up by then; the files with `down` or `up`."""
    words = (sys.executable, "-m", "toolkit", "cluster", "up", "--name", "scratch")
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, env=toolkit_env, text=True, **pipes)  # type: ignore[call-overload]
    wait_for(lambda: any("cluster-init.sh" in line for line in left_of(directory)), "processes")
    process.send_signal(number)
    _, message = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert (process.returncode, "interrupted" in message) == (130, True)
        assert not directory.exists()
    wait_for(lambda: not left_of(directory) or scratch("status").returncode == 0, "the end")
    assert scratch("status").returncode == (0 if left_of(directory) else 69)
    if number == signal.SIGKILL:
        assert scratch("up").returncode == 0
    assert scratch("down").returncode == 0
    assert left_of(directory) == []
    assert not directory.exists()


def test_why_it_did_not_start_is_quoted_and_nothing_stays(scratch, directory, tmp_path):
    """Slurmctld has no such plugin."""
    (tmp_path / "shape.toml").write_text('extra = ["SelectType=select/nothing"]\n')
    up = scratch("up", "--shape", str(tmp_path / "shape.toml"))
    assert up.returncode == 83
    for words in ("slurmctld ended", "stopped: Can't find plugin for select/nothing"):
        assert words in up.stderr
    assert (left_of(directory), directory.exists()) == ([], False)


UNEQUAL = """
nodes = [
    { names = "nid001", gpus = 4, gpu_type = "v100" },
    { names = "nid002", gpus = 2, gpu_type = "v100" },
]
partitions = [
    { name = "wide", default = true },
    { name = "one", nodes = "nid002", max_nodes = 1, max_time = "10:00" },
]
"""


def test_unequal_gpus_partitions_and_a_second_cluster(
    cluster, toolkit, scratch, shared_dir, tmp_path
):
    del cluster
    (tmp_path / "shape.toml").write_text(UNEQUAL)
    up = scratch("up", "--shape", str(tmp_path / "shape.toml"))
    assert (up.returncode, "simulated" in up.stderr) == (0, True), up.stderr
    found = status(scratch)
    gpus = [(node["gpus"], node["gpu_type"]) for node in found["nodes"]]
    assert gpus == [(4, "v100"), (2, "v100")]

    ask = "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    shown = scratch(*"exec -- srun -N1 --gres=gpu:v100:3 bash -c".split(), ask)
    assert shown.stdout.split() == ["nid001", "0,1,2"]
    beside = 'touch "$0/$SLURM_JOB_ID"; until [ $(ls "$0" | wc -l) = 2 ]; do sleep 0.1; done'
    both = f"srun -N1 -n1 -w nid002 --mem=100 --gres=gpu:1 bash -c 'echo $CUDA_VISIBLE_DEVICES; {beside}' \"$0\""
    pair = scratch("exec", "--", "bash", "-c", f"{both} & {both} & wait", shared_dir)
    assert sorted(pair.stdout.split()) == ["0", "1"], pair.stderr
    for too_much in ("-p one -N2", "-p one -t 11", "-p one --gres=gpu:3", "-p wide -N3"):
        refused = scratch("exec", "--", "sbatch", *too_much.split(), "--wrap", "true")
        assert (refused.returncode != 0, "error" in refused.stderr) == (True, True), too_much
    assert "3" in toolkit("cluster", "exec", "--", "sinfo", "-h", "-o", "%D").stdout


def test_nodes_are_machines_of_their_own(cluster, toolkit, shared_dir):
    """Each looks once all have written; what other tests have left of their jobs is no daemon."""
    del cluster
    made = 'touch "$0/$(hostname)" /tmp/$(hostname) /dev/shm/$(hostname)'
    all_have = 'until [ $(ls "$0" | wc -l) = 3 ]; do sleep 0.1; done'
    tell = "echo $(hostname) $(hostname -I) $(echo /tmp/nid*) $(echo /dev/shm/nid*)"
    ask = f"{made}; {all_have}; {tell}"
    done = toolkit("cluster", "exec", "--", *"srun -N3 bash -c".split(), ask, shared_dir)
    assert sorted(line.split() for line in done.stdout.splitlines()) == [
        [f"nid00{number}", f"10.77.0.1{number}", f"/tmp/nid00{number}", f"/dev/shm/nid00{number}"]
        for number in (1, 2, 3)
    ], done.stderr
    assert toolkit("cluster", "exec", "--", "hostname").stdout.strip() == "login"
    ps = (*"cluster exec --node nid002 --".split(), "ps", "-eo", "comm=")
    programs = {name.removesuffix("-wlm") for name in toolkit(*ps).stdout.split()}  # of Debian 13
    assert programs & {"slurmd", "slurmctld", "slurmdbd", "munged"} == {"slurmd"}


def test_exec_is_the_command(cluster, toolkit, shared_dir):
    del cluster
    script = 'pwd; echo "$1"; exit 37'
    done = toolkit(*"cluster exec -- bash -c".split(), script, "-", "it's $HOME", cwd=shared_dir)
    assert (done.returncode, done.stdout) == (37, f"{shared_dir}\nit's $HOME\n")
    assert toolkit("cluster", "exec", "nosuchcommand").returncode == 127
    assert toolkit("cluster", "exec", "--node", "nid009", "true").returncode == 64
    # The shell of the cluster knows its own cluster: the tool works in it, and does not take it
    # down from within; a node sees no other.
    tool = ("--", sys.executable, "-m", "toolkit", "cluster")
    nested = toolkit("cluster", "exec", *tool, "status", "--json")
    assert json.loads(nested.stdout)["up"] is True, nested.stderr
    down = toolkit("cluster", "exec", *tool, "down")
    assert (down.returncode, "exit it" in down.stderr) == (83, True)
    shown = toolkit("cluster", "exec", "--node", "nid001", *tool, "status")
    assert (shown.returncode, "on a node" in shown.stderr) == (83, True)


def test_a_node_is_cut_off_joined_killed_and_started(cluster, toolkit):
    del cluster

    def call(*words: str) -> Any:
        return toolkit("cluster", *words)

    assert call("cut", "nid003").returncode == 0
    powers = {node["name"]: node["power"] for node in status(call)["nodes"]}
    assert powers == {"nid001": "on", "nid002": "on", "nid003": "cut"}
    waited = call("cut", "--wait", "nid003")
    assert "down" in waited.stdout, waited.stderr
    joined = call("join", "nid003")
    assert (joined.returncode, "idle" in joined.stdout) == (0, True), joined.stderr

    # Orphans of a node and of the login side are taken in by their first process.
    orphan = "(sleep 0.01 & exec true); sleep 0.5; ps -eo stat="
    for node in (("--node", "nid003"), ()):
        assert "Z" not in call("exec", *node, "--", "bash", "-c", orphan).stdout
    assert call("exec", "--node", "nid003", "--", "touch", "/tmp/before").returncode == 0
    assert call("kill", "nid003").returncode == 0
    assert call("exec", "--node", "nid003", "--", "true").returncode == 83
    assert "is switched off" in call("join", "nid003").stderr
    started = call("start", "nid003")
    assert (started.returncode, "idle" in started.stdout) == (0, True), started.stderr
    gone = call("exec", "--", "srun", "-w", "nid003", "bash", "-c", "hostname; ls /tmp")
    name, *left = gone.stdout.split()
    assert (name, "before" in left) == ("nid003", False)
    wrong = call("kill", "nid03")
    assert (wrong.returncode, "nid003" in wrong.stderr) == (64, True)


def test_light_nodes_share_what_they_say_and_nothing_of_them_stays(scratch, directory):
    up = scratch("up", "--light", "--nodes", "40")
    assert up.returncode == 0, up.stderr
    ask = "echo $(hostname) $(hostname -i)"
    done = scratch("exec", "--", "srun", "-N40", "bash", "-c", ask)
    assert sorted(map(str.split, done.stdout.splitlines())) == [
        [f"nid{number:03d}", f"10.77.0.{number + 10}"] for number in range(1, 41)
    ], done.stderr
    assert scratch("exec", "--node", "nid007", "--", "hostname").stdout.strip() == "nid007"
    refused = scratch("cut", "nid007")
    assert (refused.returncode, "no network cable" in refused.stderr) == (83, True)
    # Also a process that has left the session of its job dies with its node, and of no other node.
    leave = 'setsid sleep 4711 >/dev/null 2>&1 & until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.1; done'
    scratch("exec", "--", "srun", "-wnid007,nid008", "bash", "-c", leave)
    assert scratch("kill", "nid007").returncode == 0
    assert scratch("exec", "--", "pgrep", "-fc", "^sleep 4711").stdout.strip() == "1"
    assert scratch("exec", "--node", "nid007", "--", "true").returncode == 83
    started = scratch("start", "nid007")
    assert (started.returncode, "idle" in started.stdout) == (0, True), started.stderr
    assert scratch("down").returncode == 0
    assert (left_of(directory), directory.exists()) == ([], False)


# digits-ddp is what the demo trains, in test_wheel.py.
def test_an_ordinary_user_has_a_cluster_and_digits_learnt_on_it(user, pytorch_image):
    """All but the installation of packages: cluster, image and ranks, in a home that is nobody else's."""
    directory = user.home / ".local/state/toolkit/clusters/local"
    images = user.home / ".local/share/toolkit/images"
    user.run("mkdir", "-p", str(images))
    shutil.copy(pytorch_image, images)
    shutil.chown(images / pytorch_image.name, user.name)
    up = user.toolkit("cluster", "up", *"--nodes 2 --mem-per-node 8G --gpus-per-node 2".split())
    srun = ("cluster", "exec", "--", "srun")
    try:
        assert up.returncode == 0, up.stderr
        ask = "echo $(hostname) $(id -un) $(hostname -I) $CUDA_VISIBLE_DEVICES; touch /tmp/mine"
        done = user.toolkit(*srun, "-N2", "--gres=gpu:2", "bash", "-c", ask)
        expected = [f"nid00{number} {user.name} 10.77.0.1{number} 0,1" for number in (1, 2)]
        assert sorted(line.strip() for line in done.stdout.splitlines()) == expected, done.stderr
        for leave, back in (("cut", "join"), ("kill", "start")):
            assert user.toolkit("cluster", leave, "nid002").returncode == 0
            assert "idle" in user.toolkit("cluster", back, "nid002").stdout
        privileges = user.toolkit(*srun, "-N1", "grep", "CapEff", "/proc/self/status")
        assert privileges.stdout.split() == ["CapEff:", "0" * 16]
        done = user.toolkit(*"run --image pytorch_cpu jobs/digits-horovod".split(), timeout=300)
    finally:
        down = user.toolkit("cluster", "down")
    assert down.returncode == 0, down.stderr
    assert left_of(directory) == []
    assert [path.name for path in directory.parent.iterdir()] == [".local.lock"]
    assert done.returncode == 0, done.stdout + done.stderr
    came_out = outcome(user.home, "digits-horovod-0001")
    results = came_out["results"]
    assert results["accuracy"] >= 0.93
    assert (results["world_size"], results["parameters_equal"]) == (4, True)
    assert [len(ranks) for ranks in came_out["ranks"].values()] == [2, 2]
    for word in [*"plan queued running done".split(), "rank 0,1", "logs digits-horovod-0001"]:
        assert word in done.stderr
    assert "0| epoch 12" in done.stdout
