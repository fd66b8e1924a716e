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
# The numbers are not written out, so that only Lightning itself can compare them.
LIGHTNING = """\
import sys
import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel
shape = {"devices": int(sys.argv[1]), "num_nodes": int(sys.argv[2])}
L.Trainer(accelerator="cpu", strategy="ddp", max_steps=1, logger=False, enable_checkpointing=False, **shape).fit(BoringModel())
"""
# Nothing of the job's shape is written: the toolkit tells Lightning.
TRAINER = """\
import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel
trainer = L.Trainer(accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False)
trainer.fit(BoringModel())
print(f"rank {trainer.global_rank} of {trainer.world_size}", flush=True)
"""
FABRIC = """\
import lightning as L
import torch
fabric = L.Fabric(accelerator="cpu")
model = fabric.setup(torch.nn.Linear(1, 1))
total = fabric.all_reduce(torch.tensor(1.0), reduce_op="sum")
print(f"rank {fabric.global_rank} of {total:.0f}", flush=True)
"""
LAUNCHED = FABRIC.replace("model =", "fabric.launch()\nmodel =")


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


def test_lightning_takes_the_tasks_of_slurm_for_its_ranks(
    toolkit: Any, trainers_image: Path, shared_dir: Path
) -> None:
    results = train(
        toolkit, shared_dir, "lightning-ddp", "--image", trainers_image, "jobs/lightning-ddp"
    )
    assert results["environment"] == "SLURMEnvironment"
    assert results["accuracy"] > 0.9


@pytest.mark.long  # beside it: the same job by srun
def test_lightning_takes_over_the_numbers_of_torchrun(
    toolkit: Any, trainers_image: Path, shared_dir: Path
) -> None:
    words = ("--launcher", "torchrun", "--image", trainers_image, "jobs/lightning-ddp")
    results = train(toolkit, shared_dir, "lightning-ddp", *words)
    assert results["environment"] == "TorchElasticEnvironment"


@pytest.mark.long  # the unit tests hold what is started; the image takes minutes where it is built
@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("lightning-fsdp", 0.9), ("accelerate-ddp", 0.9), ("transformers-trainer", 0.85)],
)
def test_a_trainer_trains_what_one_process_would(
    name: str, accuracy: float, toolkit: Any, trainers_image: Path, shared_dir: Path
) -> None:
    results = train(toolkit, shared_dir, name, "--image", trainers_image, f"jobs/{name}")
    assert results["accuracy"] > accuracy
    if name == "lightning-fsdp":
        assert 0.2 < results["share_of_parameters"] < 0.3


@pytest.mark.long  # DeepSpeed is compiled for its image
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_trains_what_one_process_would(
    stage: int, toolkit: Any, deepspeed_image: Path, shared_dir: Path
) -> None:
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
    words: list[str],
    launcher: str,
    precision: str,
    toolkit: Any,
    trainers_image: Path,
    shared_dir: Path,
) -> None:
    (shared_dir / "train.py").write_text(ACCELERATE)
    (shared_dir / "my.yaml").write_text(CONFIGURATION)
    done = toolkit(
        "run", *SHAPE, "--image", str(trainers_image), *words, cwd=shared_dir, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert launcher in done.stdout + done.stderr
    (run,) = (shared_dir / "runs").glob("*-0001")
    for rank in range(4):
        assert f"rank {rank} of 4 in {precision}" in logs_of(shared_dir, run.name)
    none_left(shared_dir)


@pytest.mark.long  # the examples of the rule are such logs
@pytest.mark.parametrize(("numbers", "says"), [((4, 2), "devices=4"), ((2, 1), "num_nodes=1")])
def test_lightning_itself_compares_what_is_not_written_out(
    numbers: tuple[int, int], says: str, toolkit: Any, trainers_image: Path, shared_dir: Path
) -> None:
    (shared_dir / "train.py").write_text(LIGHTNING)
    words = ("--image", str(trainers_image), "train.py", *map(str, numbers))
    done = toolkit("run", *SHAPE, *words, cwd=shared_dir, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rule lightning-shape" in done.stdout + done.stderr
    assert f"the Trainer has {says}, and the job" in done.stdout + done.stderr


@pytest.mark.long  # the unit tests hold what Lightning is told
@pytest.mark.parametrize(
    ("text", "launcher"),
    [(TRAINER, "srun"), (FABRIC, "torchrun"), (LAUNCHED, "srun")],
    ids=["trainer", "fabric", "fabric-launch"],
)
def test_lightning_is_told_the_shape_that_the_script_leaves_out(
    text: str, launcher: str, toolkit: Any, trainers_image: Path, shared_dir: Path
) -> None:
    (shared_dir / "train.py").write_text(text)
    words = ("--launcher", launcher, "--image", str(trainers_image), "train.py")
    done = toolkit("run", *SHAPE, *words, cwd=shared_dir, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4" in logs_of(shared_dir, "train-0001")
    none_left(shared_dir)
