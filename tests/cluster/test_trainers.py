"""Lightning, Accelerate, Transformers and DeepSpeed on two nodes, as `--launcher auto` starts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left

pytestmark = pytest.mark.usefixtures("cluster")

TOLERANCE = 1e-4  # to the parameters that one process trains; the jobs exit with 1 beyond it
SHAPE = "--nodes 2 --nodelist nid[001-002] --ntasks-per-node 2".split()
# As scripts do it that never name a CPU: alone, Accelerate finds no GPU and no other rank.
ACCELERATE = """\
from accelerate import Accelerator
accelerator = Accelerator()
accelerator.wait_for_everyone()
print(f"rank {accelerator.process_index} of {accelerator.num_processes} in {accelerator.mixed_precision}", flush=True)
accelerator.end_training()
"""
CONFIGURATION = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 1
machine_rank: 0
"""


def train(toolkit: Any, directory: Path, name: str, *words: object) -> dict[str, Any]:
    """Run a job on two nodes, and return what its first rank printed as a result."""
    arguments = ("run", "--nodelist", "nid[001-002]", *map(str, words))
    done = toolkit(*arguments, cwd=directory, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads((directory / "runs" / f"{name}-0001/outcome.json").read_text())
    assert [len(ranks) for ranks in outcome["ranks"].values()] == [2, 2]
    results: dict[str, Any] = outcome["results"]
    assert (results["world_size"], results["parameters_equal"]) == (4, True)
    assert results["reference_difference"] <= TOLERANCE
    none_left(directory)
    return results


def test_lightning_takes_the_tasks_of_slurm_for_its_ranks(toolkit, trainers_image, shared_dir):
    results = train(
        toolkit, shared_dir, "lightning-ddp", "--image", trainers_image, "jobs/lightning-ddp"
    )
    assert results["environment"] == "SLURMEnvironment"
    assert results["accuracy"] > 0.9


@pytest.mark.long  # the unit tests hold what is started; the image takes minutes where it is built
@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("lightning-fsdp", 0.9), ("accelerate-ddp", 0.9), ("transformers-trainer", 0.85)],
)
def test_a_trainer_trains_what_one_process_would(
    name, accuracy, toolkit, trainers_image, shared_dir
):
    results = train(toolkit, shared_dir, name, "--image", trainers_image, f"jobs/{name}")
    assert results["accuracy"] > accuracy
    if name == "lightning-fsdp":
        assert 0.2 < results["share_of_parameters"] < 0.3


@pytest.mark.long  # DeepSpeed is compiled for its image
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_trains_what_one_process_would(stage, toolkit, deepspeed_image, shared_dir):
    words = ("--image", deepspeed_image, "jobs/deepspeed-zero", "--stage", stage)
    results = train(toolkit, shared_dir, "deepspeed-zero", *words)
    assert (results["stage"], results["accuracy"] > 0.9) == (stage, True)


@pytest.mark.long  # beside it: Lightning
@pytest.mark.parametrize(
    ("words", "launcher", "precision"),
    [
        (["train.py"], "torchrun (train.py imports accelerate)", "no"),
        (["--", "accelerate", "launch", "train.py"], "accelerate (accelerate launch", "no"),
        (
            ["--", "accelerate", "launch", "--config_file", "my.yaml", "train.py"],
            "accelerate",
            "bf16",
        ),
    ],
)
def test_ranks_of_accelerate_meet_without_gpus(
    words, launcher, precision, launch, trainers_image, shared_dir
):
    (shared_dir / "train.py").write_text(ACCELERATE)
    (shared_dir / "my.yaml").write_text(CONFIGURATION)
    done = launch(trainers_image, *SHAPE, *words, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert launcher in done.stdout + done.stderr
    (run,) = (shared_dir / "runs").glob("*-0001")
    for rank in range(4):
        assert f"rank {rank} of 4 in {precision}" in logs_of(shared_dir, run.name)
    none_left(shared_dir)
