"""The tools that show the GPU of a job that runs: top, stacks, report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import SCRIPTS, toolkit


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
