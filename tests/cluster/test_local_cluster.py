"""The local cluster is a real Slurm: nodes of their own, failures that look like failures, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ordinary_user import User


def left_of(directory: str) -> list[str]:
    """Every process and mount here that belongs to the cluster in ``directory``; its daemons name it in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = entry.joinpath("cmdline").read_bytes()
                settings = entry.joinpath("environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                f"{directory}\0".encode() in words
                or f"SLURM_CONF={directory}/etc/slurm.conf".encode() in settings
            ):
                found.append(f"{entry.name} {words!r}")
    return found + [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if directory in line
    ]


def eventually(question: Callable[[], Any], timeout: float = 120) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if question():
            return True
        time.sleep(0.1)
    return bool(question())


@pytest.fixture
def scratch(toolkit: Any, toolkit_env: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """`toolkit` with a cluster called `scratch`, taken down after the test whatever came."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "scratch"}
    yield lambda *words, **more: toolkit(*words, **{"env": env, **more})
    toolkit("cluster", "down", env=env)


@pytest.fixture
def directory(toolkit_env: dict[str, str]) -> Path:
    """Of the cluster `scratch`."""
    return Path(toolkit_env["TOOLKIT_CLUSTER_DIR"], "scratch")


def supervisor(directory: Path) -> int:
    """The first process of a cluster, as it is numbered here."""
    pid = json.loads((directory / "run" / "started.json").read_text())["pid"]
    assert isinstance(pid, int)
    return pid


def test_up_twice_and_nothing_stays_after_down(scratch: Any, directory: Path) -> None:
    interfaces = sorted(Path("/sys/class/net").iterdir())
    up = scratch("cluster", "up", "--nodes", "2")
    assert up.returncode == 0, up.stderr
    assert "scratch is up" in up.stdout
    assert left_of(str(directory))
    first = supervisor(directory)
    second = scratch("cluster", "up", "--nodes", "2")
    assert (second.returncode, "is up already" in second.stdout) == (0, True)
    other = scratch("cluster", "up", "--nodes", "1")
    assert other.returncode == 83
    assert "another shape" in other.stderr
    assert "toolkit cluster down" in other.stderr
    assert supervisor(directory) == first
    down = scratch("cluster", "down")
    assert down.returncode == 0
    assert left_of(str(directory)) == []
    assert not directory.exists()
    assert sorted(Path("/sys/class/net").iterdir()) == interfaces
    again = scratch("cluster", "down")
    assert (again.returncode, "was not up" in again.stdout) == (0, True)


def test_down_after_the_controller_was_killed(scratch: Any, directory: Path) -> None:
    assert scratch("cluster", "up", "--nodes", "1").returncode == 0
    assert scratch("cluster", "exec", "--", "pkill", "-9", "-x", "slurmctld(-wlm)?").returncode == 0
    assert eventually(
        lambda: not json.loads(scratch("cluster", "status", "--json").stdout)["controller"]
    )
    down = scratch("cluster", "down", "--keep-logs")
    assert down.returncode == 0, down.stderr
    assert left_of(str(directory)) == []
    assert sorted(path.name for path in directory.iterdir()) == ["cluster.json", "log"]
    assert scratch("cluster", "down").returncode == 0
    assert not directory.exists()


@pytest.mark.parametrize("moment", [0.0, 0.3])
def test_down_after_up_was_killed(
    moment: float, scratch: Any, directory: Path, toolkit_env: dict[str, str]
) -> None:
    """Its processes go by themselves, if it was not wholly up by then; the files go with the next `down`, or `up`."""
    words = (sys.executable, "-m", "toolkit", "cluster", "up", "--name", "scratch")
    process = subprocess.Popen(
        words, env=toolkit_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert eventually(
        lambda: [line for line in left_of(str(directory)) if "cluster-init.sh" in line]
    )
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert eventually(
        lambda: left_of(str(directory)) == [] or scratch("cluster", "status").returncode == 0
    ), left_of(str(directory))
    assert scratch("cluster", "status").returncode == (69 if left_of(str(directory)) == [] else 0)
    if moment:
        assert scratch("cluster", "up").returncode == 0
    assert scratch("cluster", "down").returncode == 0
    assert left_of(str(directory)) == []
    assert not directory.exists()


def test_interrupting_up_cleans_up(
    directory: Path, scratch: Any, toolkit_env: dict[str, str]
) -> None:
    del scratch
    words = (sys.executable, "-m", "toolkit", "cluster", "up", "--name", "scratch")
    process = subprocess.Popen(
        words, env=toolkit_env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert eventually(
        lambda: [line for line in left_of(str(directory)) if "cluster-init.sh" in line]
    )
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, "interrupted" in said) == (130, True)
    assert left_of(str(directory)) == []
    assert not directory.exists()


def test_a_broken_shape_is_explained_and_cleaned_up(
    scratch: Any, directory: Path, shared_dir: Path
) -> None:
    shape = shared_dir / "shape.toml"
    shape.write_text('extra = ["SelectType=select/nothing"]\n')
    up = scratch("cluster", "up", "--shape", str(shape))
    assert up.returncode == 83
    assert "slurmctld ended" in up.stderr
    assert "stopped: Can't find plugin for select/nothing" in up.stderr
    assert "toolkit setup" in up.stderr
    assert left_of(str(directory)) == []
    assert not directory.exists()


def test_a_slurmd_that_stops_itself_is_quoted_at_once(
    scratch: Any, directory: Path, toolkit_env: dict[str, str], tmp_path: Path
) -> None:
    """The second node is told that it is another one, which slurm.conf lacks."""
    real = shutil.which("slurmd", path=f"{toolkit_env['PATH']}:/usr/sbin:/sbin")
    assert real
    planted = tmp_path / "slurmd"
    planted.write_text(
        f'#!/bin/sh\ncase " $* " in *nid002*) set -- -D -N nowhere;; esac\nexec {real} "$@"\n'
    )
    planted.chmod(0o755)
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "scratch"}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    up = scratch("cluster", "up", "--nodes", "2", "--share", str(tmp_path), env=env)
    assert up.returncode == 83
    reason = next(line for line in up.stderr.splitlines() if "did not start: " in line)
    assert "slurmd.nid002" in reason
    assert "stopped: " in reason
    assert "nowhere" in up.stderr
    assert "after 60 s" not in up.stderr
    assert left_of(str(directory)) == []


def test_unequal_gpus_partitions_and_a_second_cluster(
    cluster: str, toolkit: Any, scratch: Any, shared_dir: Path
) -> None:
    del cluster
    partitions = (
        *"--partition wide:default --partition one:nodes=nid002,max-nodes=1,max-time=10:00".split(),
    )
    up = scratch("cluster", "up", "--gpus-per-node", "4,2", "--gpu-type", "v100", *partitions)
    assert up.returncode == 0, up.stderr
    assert "simulated" in up.stderr
    found = json.loads(scratch("cluster", "status", "--json").stdout)
    assert [(node["gpus"], node["gpu_type"]) for node in found["nodes"]] == [
        (4, "v100"),
        (2, "v100"),
    ]
    assert [(part["name"], part["default"], part["max_nodes"]) for part in found["partitions"]] == [
        ("wide", True, None),
        ("one", False, 1),
    ]

    shown = scratch(
        *"cluster exec -- srun -N1 --gres=gpu:v100:3 bash -c".split(),
        "echo $(hostname) $CUDA_VISIBLE_DEVICES",
    )
    assert shown.stdout.split() == ["nid001", "0,1,2"]
    beside = 'touch "$0/$SLURM_JOB_ID"; until [ $(ls "$0" | wc -l) = 2 ]; do sleep 0.1; done'
    both = f"srun -N1 -n1 -w nid002 --mem=100 --gres=gpu:1 bash -c 'echo $CUDA_VISIBLE_DEVICES; {beside}' \"$0\""
    pair = scratch("cluster", "exec", "--", "bash", "-c", f"{both} & {both} & wait", shared_dir)
    assert sorted(pair.stdout.split()) == ["0", "1"], pair.stderr

    for too_much in (
        ("-p", "one", "-N2"),
        ("-p", "one", "-t", "11"),
        ("-p", "one", "--gres=gpu:3"),
        ("-p", "wide", "-N3"),
    ):
        refused = scratch("cluster", "exec", "--", "sbatch", *too_much, "--wrap", "true")
        assert refused.returncode != 0, too_much
        assert "error" in refused.stderr
    assert "3" in toolkit("cluster", "exec", "--", "sinfo", "-h", "-o", "%D").stdout
    assert "also up     test" in scratch("cluster", "status").stdout


def test_nodes_are_machines_of_their_own(cluster: str, toolkit: Any, shared_dir: Path) -> None:
    """Each looks once all have written; what other tests have left of their jobs is no daemon."""
    del cluster
    made = 'touch "$0/$(hostname)" /tmp/$(hostname) /dev/shm/$(hostname)'
    all_have = 'until [ $(ls "$0" | wc -l) = 3 ]; do sleep 0.1; done'
    tell = "echo $(hostname) $(hostname -I) $(echo /tmp/nid*) $(echo /dev/shm/nid*)"
    ask = f"{made}; {all_have}; {tell}"
    done = toolkit("cluster", "exec", "--", *"srun -N3 bash -c".split(), ask, shared_dir)
    names = ["nid001", "nid002", "nid003"]
    assert sorted(line.split() for line in done.stdout.splitlines()) == [
        [name, f"10.77.0.{number}", f"/tmp/{name}", f"/dev/shm/{name}"]
        for number, name in enumerate(names, 11)
    ], done.stderr
    assert toolkit("cluster", "exec", "--", "hostname").stdout.strip() == "login"
    ps = (*"cluster exec --node nid002 --".split(), "ps", "-eo", "comm=")
    programs = {name.removesuffix("-wlm") for name in toolkit(*ps).stdout.split()}  # of Debian 13
    assert programs & {"slurmd", "slurmctld", "slurmdbd", "munged"} == {"slurmd"}


def test_shared_directories_below_tmp(scratch: Any, tmp_path: Path) -> None:
    """The directory that `up` runs in, and those that were asked for, are the same on all nodes though /tmp is not."""
    if not str(tmp_path).startswith("/tmp/"):
        pytest.fail(f"pytest's own directory {tmp_path} was expected below /tmp")
    for name in ("here", "asked for", "neither"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    up = scratch("cluster", "up", "--share", str(tmp_path / "asked for"), cwd=tmp_path / "here")
    assert up.returncode == 0, up.stderr
    ask = 'for d in here "asked for" neither; do [ -e "$0/$d/file" ] && echo "$d"; done'
    seen = scratch(
        *"cluster exec -- srun -N2 bash -c".split(), ask, str(tmp_path), cwd=tmp_path / "here"
    )
    assert sorted(seen.stdout.splitlines()) == ["asked for", "asked for", "here", "here"], (
        seen.stderr
    )
    shared = json.loads(scratch("cluster", "status", "--json").stdout)["shared"]
    assert {str(tmp_path / "here"), str(tmp_path / "asked for")} <= set(shared)
    refused = scratch("cluster", "up", "--share", "/tmp")
    assert refused.returncode == 64


def test_exec_is_the_command(cluster: str, toolkit: Any, shared_dir: Path) -> None:
    del cluster
    done = toolkit(
        *"cluster exec -- bash -c".split(),
        'pwd; echo "$1"; exit 37',
        "-",
        "it's $HOME",
        cwd=shared_dir,
    )
    assert (done.returncode, done.stdout) == (37, f"{shared_dir}\nit's $HOME\n")
    assert toolkit("cluster", "exec", "nosuchcommand").returncode == 127
    assert toolkit("cluster", "exec", "--node", "nid009", "true").returncode == 64
    # The shell of the cluster knows its own cluster: the tool works in it, and does not take it
    # down from within.
    nested = toolkit(
        "cluster", "exec", "--", sys.executable, "-m", "toolkit", "cluster", "status", "--json"
    )
    assert json.loads(nested.stdout)["up"] is True, nested.stderr
    down = toolkit("cluster", "exec", "--", sys.executable, "-m", "toolkit", "cluster", "down")
    assert (down.returncode, "exit it" in down.stderr) == (83, True)


def test_a_node_that_is_cut_off_and_joined(cluster: str, toolkit: Any) -> None:
    del cluster
    assert toolkit("cluster", "cut", "nid003").returncode == 0
    shown = {
        node["name"]: node["power"]
        for node in json.loads(toolkit("cluster", "status", "--json").stdout)["nodes"]
    }
    assert shown == {"nid001": "on", "nid002": "on", "nid003": "cut"}
    waited = toolkit("cluster", "cut", "--wait", "nid003")
    assert "down" in waited.stdout, waited.stderr
    joined = toolkit("cluster", "join", "nid003")
    assert (joined.returncode, "idle" in joined.stdout) == (0, True), joined.stderr
    assert (
        toolkit("cluster", "exec", "--", "srun", "-w", "nid003", "hostname").stdout.strip()
        == "nid003"
    )


def test_a_node_that_is_killed_and_started(cluster: str, toolkit: Any) -> None:
    del cluster
    assert (
        toolkit("cluster", "exec", "--node", "nid003", "--", "touch", "/tmp/before").returncode == 0
    )
    assert toolkit("cluster", "kill", "nid003").returncode == 0
    assert toolkit("cluster", "exec", "--node", "nid003", "--", "true").returncode == 83
    started = toolkit("cluster", "start", "nid003")
    assert (started.returncode, "idle" in started.stdout) == (0, True), started.stderr
    gone = toolkit(
        "cluster", "exec", "--", "srun", "-w", "nid003", "bash", "-c", "hostname; ls /tmp"
    )
    name, *left = gone.stdout.split()
    assert (name, "before" in left) == ("nid003", False)
    wrong = toolkit("cluster", "kill", "nid03")
    assert (wrong.returncode, "nid003" in wrong.stderr) == (64, True)


def test_light_nodes_share_what_they_say_and_nothing_of_them_stays(
    scratch: Any, directory: Path
) -> None:
    up = scratch("cluster", "up", "--light", "--nodes", "40")
    assert up.returncode == 0, up.stderr
    ask = "echo $(hostname) $(hostname -i)"
    done = scratch("cluster", "exec", "--", "srun", "-N40", "bash", "-c", ask)
    assert sorted(map(str.split, done.stdout.splitlines())) == [
        [f"nid{number:03d}", f"10.77.0.{number + 10}"] for number in range(1, 41)
    ], done.stderr
    entered = scratch("cluster", "exec", "--node", "nid007", "--", "hostname")
    assert entered.stdout.strip() == "nid007"
    refused = scratch("cluster", "cut", "nid007")
    assert (refused.returncode, "no network cable" in refused.stderr) == (83, True)
    # Also a process that has left the session of its job dies with its node, and of no other node.
    leave = 'setsid sleep 4711 >/dev/null 2>&1 & until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.1; done'
    scratch("cluster", "exec", "--", "srun", "-wnid007,nid008", "bash", "-c", leave)
    assert scratch("cluster", "kill", "nid007").returncode == 0
    left = scratch("cluster", "exec", "--", "pgrep", "-fc", "^sleep 4711")
    assert left.stdout.strip() == "1"
    assert scratch("cluster", "exec", "--node", "nid007", "--", "true").returncode == 83
    started = scratch("cluster", "start", "nid007")
    assert (started.returncode, "idle" in started.stdout) == (0, True), started.stderr
    assert scratch("cluster", "down").returncode == 0
    assert left_of(str(directory)) == []
    assert not directory.exists()


@pytest.mark.long
def test_a_job_on_a_thousand_nodes(scratch: Any, tmp_path: Path) -> None:
    up = scratch("cluster", "up", "--nodes", "1000", "--share", str(tmp_path), timeout=400)
    assert up.returncode == 0, up.stderr
    words = ("--launcher", "none", "--runtime", "none", "--nodes", "1000", "--", "hostname")
    done = scratch("run", *words, cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "1000 nodes: nid[0001-1000]" in done.stdout + done.stderr
    printed = {path.read_text().strip() for path in tmp_path.glob("runs/*/logs/*-*-*.log")}
    assert printed == {f"nid{number:04d}" for number in range(1, 1001)}


def test_an_ordinary_user(user: User) -> None:
    directory = user.home / ".local/state/toolkit/clusters/local"
    up = user.toolkit("cluster", "up", "--gpus-per-node", "2")
    try:
        assert up.returncode == 0, up.stderr
        ask = "echo $(hostname) $(id -un) $(hostname -I) $CUDA_VISIBLE_DEVICES; touch /tmp/mine"
        done = user.toolkit(
            "cluster", "exec", "--", "srun", "-N2", "--gres=gpu:2", "bash", "-c", ask
        )
        expected = [f"nid00{number} {user.name} 10.77.0.1{number} 0,1" for number in (1, 2)]
        assert sorted(line.strip() for line in done.stdout.splitlines()) == expected, done.stderr
        assert user.toolkit("cluster", "kill", "nid002").returncode == 0
        assert "idle" in user.toolkit("cluster", "start", "nid002").stdout
        privileges = user.toolkit(
            "cluster", "exec", "--", "srun", "-N1", "grep", "CapEff", "/proc/self/status"
        )
        assert privileges.stdout.split() == ["CapEff:", "0" * 16]
    finally:
        down = user.toolkit("cluster", "down")
    assert down.returncode == 0, down.stderr
    assert left_of(str(directory)) == []
    assert not directory.parent.exists()
