"""Exercises of jobs/ on a GPU: the same scripts, with one rank that has it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import ROOT, compiled, toolkit

ONE = "--runtime none --nodes 1 --ntasks-per-node 1 --gpus-per-node 1 --time 5".split()
# What they need that not every Python with PyTorch has; nccl-allreduce prints no device of a rank.
NEEDS = {
    "digits-ddp": "sklearn",
    "ddp-comm-hooks": "sklearn",
    "fsdp": "torch",
    "tensor-parallel": "sklearn",
    "nccl-allreduce": "torch",
    "accelerate-ddp": "accelerate",
    "lightning-ddp": "lightning",
    "lightning-fsdp": "lightning",
    "transformers-trainer": "accelerate",
}
pytestmark = pytest.mark.usefixtures("cluster", "gpus")


@pytest.fixture(scope="session")
def horovod(gpus: int, place: Path) -> dict[str, str]:
    """The variables of an environment with Horovod, compiled for this machine's PyTorch."""
    del gpus
    venv = compiled("horovod", place) / "venv"
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{os.environ['PATH']}"}


def trained(
    place: Path, *words: str, env: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Run an exercise; return what it printed, and its results."""
    ended = toolkit("run", *ONE, *words, cwd=place, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line.removeprefix("0| ") for line in ended.stdout.splitlines()]
    found: dict[str, Any] = json.loads([line for line in lines if line.startswith('{"')][-1])
    return ended.stdout, found


@pytest.mark.parametrize("name", NEEDS)
def test_an_exercise_trains_on_the_gpu(name, place, record_property):
    """An exercise of jobs/ runs on the GPU, by its own launcher."""
    pytest.importorskip(NEEDS[name])
    text, results = trained(place, str(ROOT / "jobs" / name))
    assert "device cuda" in text or results.get("device") == "cuda"
    assert results["world_size"] == 1
    for figure in {"accuracy", "loss", "samples_per_second", "wrong"} & set(results):
        record_property(figure.replace("_", " "), results[figure])


@pytest.mark.parametrize(
    "words",
    [
        ("digits-horovod",),
        ("imagenet-resnet50", "--synthetic", "1024", "--epochs", "1", "--batch-size", "64"),
    ],
    ids=lambda words: words[0],
)
def test_horovod_averages_over_nccl(words, horovod, place, record_property):
    """Horovod, compiled as the recipes do, trains on the GPU, and it is NCCL that averages."""
    job, *arguments = words
    options = ("--launcher", "horovod-gloo", "--env", "NCCL_DEBUG=VERSION")
    text, results = trained(place, *options, str(ROOT / "jobs" / job), *arguments, env=horovod)
    assert "device cuda" in text
    assert "NCCL version" in text  # of a communicator: nothing else makes one in these scripts
    record_property("samples per second", results["samples_per_second"])
