"""`toolkit doctor`: a healthy cluster passes, and what is broken on purpose is found, on real nodes, through real jobs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import ran

pytestmark = pytest.mark.usefixtures("cluster")

OF_THIS_MACHINE = ("slurm", "node-states", "container", "directories")
OF_NODES = tuple("allocation image-on-nodes names connections rendezvous clocks interface".split())


@pytest.fixture
def doctor(toolkit, shared_dir):
    """Run `toolkit doctor OPTIONS`; return its exit code and the findings by their names."""

    def call(options: str, *more: str, **settings: Any) -> tuple[int, dict[str, Any]]:
        words = ("doctor", "--json", *options.split(), *more)
        done = toolkit(*words, cwd=shared_dir, timeout=400, **settings)
        assert done.stdout, done.stderr
        return done.returncode, by_name(done.stdout)

    return call


def by_name(text: str) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(text)["findings"]}


def failed(found: dict[str, dict[str, str]]) -> set[str]:
    return {name for name, one in found.items() if one["outcome"] == "FAIL"}


@pytest.mark.long  # beside it: `image verify` on two nodes, and what is broken, each time alone
def test_a_healthy_cluster_passes(doctor, toolkit, pytorch_image, shared_dir):
    code, found = doctor(f"--nodes 2 --gpus 1 --image {pytorch_image}")
    assert code == 0, found
    for name in (*OF_THIS_MACHINE, "image", *OF_NODES, "allreduce-gloo", "allreduce-mpi"):
        # Little room on a disk is worth a warning.
        assert found[name]["outcome"] in ("PASS", "WARN"), found[name]
    assert "GB/s per rank" in found["allreduce-gloo"]["detail"]
    assert "GPUs are simulated" in found["gpus"]["detail"]
    assert not list((Path.home() / ".cache/toolkit").glob("verify-*/report-*"))
    assert toolkit("doctor", cwd=shared_dir).returncode == 0


@contextlib.contextmanager
def on_node(toolkit: Any, node: str, line: str, back: str) -> Iterator[None]:
    """Something is wrong with a node meanwhile."""

    def call(text: str) -> None:
        done = toolkit("cluster", "exec", "--node", node, "--", "bash", "-c", text)
        assert done.returncode == 0, done.stderr

    call(line)
    try:
        yield
    finally:
        call(back)


def test_a_name_that_does_not_resolve_and_a_drained_node(
    doctor, toolkit, pytorch_image, shared_dir
):
    (shared_dir / "hosts").write_text("127.0.0.1 localhost\n10.77.0.12 nid002\n")
    admin = ("cluster", "exec", "--", "scontrol", "update", "nodename=nid003")
    assert toolkit(*admin, "state=drain", "reason=fan is broken").returncode == 0
    mount = f"mount --bind {shared_dir}/hosts /etc/hosts"
    # A daemon of the node may be reading it.
    try:
        with on_node(toolkit, "nid002", mount, "umount --lazy /etc/hosts"):
            code, found = doctor(f"--nodes 2 --image {pytorch_image}")
            few, _ = doctor("--nodes 3")
    finally:
        toolkit(*admin, "state=resume")
    assert (code, few) == (92, 92)
    assert failed(found) >= {"names", "connections"}
    assert "nid002 cannot resolve nid001" in found["names"]["detail"]
    assert found["node-states"]["outcome"] == "WARN"
    assert "sinfo -R" in found["node-states"]["next_step"]
    assert "do not reach each other" in found["allreduce-gloo"]["detail"]


def test_a_closed_port_is_found_and_nobody_waits_for_ranks_that_cannot_meet(
    doctor, toolkit, pytorch_image
):
    rule = "INPUT -i eth0 -p tcp --dport 61000:65535 -j REJECT"
    with on_node(toolkit, "nid001", f"iptables -A {rule}", f"iptables -D {rule}"):
        code, found = doctor(f"--nodes 2 --image {pytorch_image}")
    assert code == 92
    assert failed(found) == {"rendezvous"}, found
    no_port = "port of nid001 from 61000 to 65535 is reached from all others: nid002 -> nid001: "
    assert no_port in found["rendezvous"]["detail"]
    assert found["allreduce-gloo"]["outcome"] == "not checked"


def test_a_node_that_does_not_see_the_image(doctor, toolkit, pytorch_image):
    directory = pytorch_image.parent
    mount, back = f"mount -t tmpfs none {directory}", f"umount --lazy {directory}"
    with on_node(toolkit, "nid002", mount, back):
        code, found = doctor(f"--nodes 2 --image {pytorch_image}")
    assert code == 92
    assert "image-on-nodes" in failed(found)
    assert "nid002" in found["image-on-nodes"]["detail"], found
    assert found["names"]["outcome"] == "not checked"


def test_a_full_directory_no_slurm_and_no_image(doctor, toolkit_env, shared_dir):
    full = shared_dir / "full"
    full.mkdir()
    line = 'mount -t tmpfs -o size=64k none "$1" && cd "$1" && shift && exec "$@"'
    enter = (*"unshare --mount bash -c".split(), line, "bash", str(full))
    words = (*enter, sys.executable, *"-m toolkit doctor --json".split())
    done = ran(*words, env=toolkit_env)
    found = by_name(done.stdout)
    assert (done.returncode, failed(found)) == (92, {"directories"})
    assert "no space left on device" in found["directories"]["detail"]

    env = {**toolkit_env, "TOOLKIT_CLUSTER": "nowhere"}
    code, found = doctor("--nodes 1 --image nothing", env=env)
    assert code == 92
    assert failed(found) == {"slurm", "image"}
    assert found["allocation"]["outcome"] == "not checked"
    assert "toolkit cluster up" in found["slurm"]["next_step"]
