"""The tools that show GPUs: top, stacks, report, doctor, cluster status, site init."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import CLUSTER, SCRIPTS, toolkit


@pytest.fixture(scope="module")
def busy(gpus: int, cluster: str, place: Path) -> Iterator[str]:
    """A job that keeps one GPU busy."""
    del gpus, cluster
    options = "--detach --launcher none --runtime none --time 5 --gpus-per-node 1".split()
    begun = toolkit("run", *options, "-J", "busy", str(SCRIPTS / "busy.py"), cwd=place)
    assert begun.returncode == 0, begun.stderr
    try:
        _await(lambda: "BUSY" in toolkit("logs", "busy-0001", cwd=place).stdout)
        yield "busy-0001"
    finally:
        toolkit("cancel", "busy-0001", cwd=place)


def _await(condition: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the job did not begin to compute"
        time.sleep(1)


def test_top_shows_the_gpu(busy, place, record_property):
    """Toolkit top shows the use and memory of the GPU, and the process that has it."""
    seen = json.loads(toolkit("top", "--json", busy, cwd=place).stdout)
    used = [gpu for gpu in seen["gpus"] if gpu["busy"] > 50]
    assert used, seen
    assert used[0]["used"] >= 1 << 30
    assert used[0]["total"] > used[0]["used"]
    (process,) = [each for each in seen["processes"] if "busy.py" in each["command"]]
    record_property("busy %", used[0]["busy"])
    record_property("GPU memory of the process", process["gpu_memory"])


def test_stacks_of_a_rank_that_waits_for_its_gpu(busy, place):
    """Toolkit stacks says where a rank is while its GPU computes."""
    asked = toolkit("stacks", "--json", busy, cwd=place)
    assert asked.returncode == 0, asked.stderr
    assert "busy.py" in asked.stdout


def test_report_shows_the_gpu_of_a_job(busy, place, record_property):
    """Toolkit report has the use, memory and power of the GPU, sampled on the node."""

    def sampled() -> dict[str, Any]:
        """The GPU once it has been seen at work: the first sample is from before that."""
        gpus = json.loads(toolkit("report", "--json", busy, cwd=place).stdout)["gpus"]
        return next((gpu for gpu in gpus if max(gpu["samples"]) > 50), {})

    _await(sampled)
    gpu = sampled()
    assert gpu["memory"] >= 1 << 30
    assert gpu["total"] > gpu["memory"]
    assert 0 < gpu["power"] < gpu["limit"] * 1.1
    for figure in ("busy", "power", "limit"):
        record_property(figure, round(gpu[figure]))


@pytest.mark.usefixtures("cluster", "gpus")
def test_a_site_is_written_from_the_node(facts, place):
    """Toolkit site init --probe finds the driver on the node."""
    words = "site init here --probe --dry-run --site local".split()
    written = toolkit(*words, cwd=place)
    assert written.returncode == 0, written.stderr
    assert facts.driver in written.stdout


@pytest.mark.usefixtures("cluster")
def test_the_doctor_sees_gpus_and_driver(gpus, place, small_image):
    """Toolkit doctor passes its items about GPUs and driver."""
    words = ("--nodes", "1", "--gpus-per-node", str(gpus), "--image", str(small_image))
    found = json.loads(toolkit("doctor", "--json", *words, cwd=place).stdout)["findings"]
    of = {finding["name"]: finding for finding in found}
    assert of["gpus"]["outcome"] == "passed", of["gpus"]
    assert of["driver"]["outcome"] == "passed", of["driver"]


@pytest.mark.usefixtures("cluster")
def test_the_cluster_says_which_gpus_it_has(facts, place):
    """A local cluster has this machine's GPUs, or says that they are simulated."""
    shown = json.loads(toolkit("cluster", "status", "--name", CLUSTER, "--json", cwd=place).stdout)
    assert shown["real_gpus"] is bool(facts.devices)
    asked = toolkit(
        "cluster",
        "exec",
        "--name",
        CLUSTER,
        "--",
        *"srun --gres=gpu:1 printenv".split(),
        "CUDA_VISIBLE_DEVICES",
        cwd=place,
    )
    assert asked.stdout.strip() == "0", asked.stderr
