"""The exercises that are shipped: whole, readable, and free of cluster code. That they train is shown on the cluster."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.samples import read_script, script_case
from toolkit import launchers
from toolkit.config import shipped
from toolkit.files import read_toml
from toolkit.hostsetup.parts import DATASETS
from toolkit.model.base import toml
from toolkit.model.job import Job

# Exercise -> its launcher, and the call that ends the ranks; None: it has one process, and nobody
# to wait for.
EXERCISES: dict[str, tuple[str, str | None]] = {
    "digits-dataparallel": ("none", None),
    "digits-ddp": ("torchrun", "dist.destroy_process_group()"),
    "digits-ddp-elastic": ("torchrun", "dist.destroy_process_group()"),
    "digits-ddp-spawn": ("spawn", "dist.destroy_process_group()"),
    "digits-ddp-srun": ("srun", "dist.destroy_process_group()"),
    "digits-horovod": ("horovod", "hvd.shutdown()"),
    "digits-horovod-elastic": ("horovod-elastic", "hvd.shutdown()"),
    "imagenet-resnet50": ("horovod", "hvd.shutdown()"),
    "fashion-ddp": ("torchrun", "dist.destroy_process_group()"),
    "horovod-tensorflow": ("horovod", "hvd.shutdown()"),
    "ray-tasks": ("ray", "ray.shutdown()"),
    "ray-train": ("ray", "ray.shutdown()"),
    "ray-tune": ("ray", "ray.shutdown()"),
    "tensorflow-mirrored": ("tensorflow", None),
    "tensorflow-multiworker": (
        "tensorflow",
        None,
    ),  # its workers end by themselves, after all have met
    "gpu-count": ("torchrun", "dist.destroy_process_group()"),
    "fsdp": ("torchrun", "dist.destroy_process_group()"),
    "tensor-parallel": ("torchrun", "dist.destroy_process_group()"),
    "pipeline": ("torchrun", "dist.destroy_process_group()"),
    "parallel-3d": ("torchrun", "dist.destroy_process_group()"),
    "ddp-comm-hooks": ("torchrun", "dist.destroy_process_group()"),
    "horovod-adasum": ("horovod", "hvd.shutdown()"),
    "lightning-ddp": ("srun", "dist.destroy_process_group()"),
    "lightning-fsdp": ("srun", "dist.destroy_process_group()"),
    "accelerate-ddp": ("torchrun", "dist.destroy_process_group()"),
    "transformers-trainer": ("torchrun", "dist.destroy_process_group()"),
    "deepspeed-zero": ("torchrun", "dist.destroy_process_group()"),
}
KEYS = {
    "summary",
    "script",
    "arguments",
    "image",
    "launcher",
    "nodes",
    "ntasks_per_node",
    "cpus_per_task",
    "time",
    "max_restarts",
    "bind",
    "datasets",
}
TRAINED = {"accuracy", "loss", "epochs", "samples_per_second", "seconds"}
TOGETHER = {"world_size", "parameters_equal", "max_parameter_difference"}
# Each rank has a part of the network, so that the result is compared with one process.
ALONE = {"world_size", "loss", "equal_to_one_process", "tolerance", "samples_per_second", "seconds"}
# What is no training of several ranks tells of something else.
RESULT_KEYS = {
    "fsdp": {*ALONE, "steps", "resumed_after", "max_difference"},
    "tensor-parallel": {*ALONE, *TRAINED, "max_loss_difference"},
    "pipeline": {*ALONE, *TRAINED, "max_gradient_difference", "bubble", "bubble_by_arithmetic"},
    "parallel-3d": {*ALONE, *TRAINED, "max_loss_difference", "mesh"},
    "digits-dataparallel": {*TRAINED, "gpus"},
    "ray-tasks": {"tasks", "actors", "nodes", "tasks_on", "actors_on"},
    "ray-tune": {"accuracy", "settings", "trials", "failed", "stopped_early", "hosts"},
    "gpu-count": {"nodes", "gpus_given", "gpus_usable", "wrong", "all_reduce"},
}


@pytest.fixture(params=EXERCISES)
def folder(request: pytest.FixtureRequest) -> Path:
    return shipped("jobs") / str(request.param)


def constants(script: str) -> set[str]:
    """The strings in the code of a script, its comments left out."""
    return {
        node.value
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_a_folder_has_its_three_files(folder):
    assert {"job.toml", "train.py", "README.md"} <= {file.name for file in folder.iterdir()}


def test_the_job_file_has_known_keys_and_names_what_is_there(folder):
    job = toml((folder / "job.toml").read_text(encoding="utf-8"))
    assert set(job) <= KEYS
    assert read_toml(folder / "job.toml", Job).summary
    assert (folder / str(job["script"])).is_file()
    assert (shipped("recipes") / f"{job['image']}.toml").is_file()
    assert job["launcher"] == EXERCISES[folder.name][0]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", str(job["time"]))


def test_the_defaults_of_the_job_are_options_of_the_script(folder):
    arguments = toml((folder / "job.toml").read_text(encoding="utf-8")).get("arguments", [])
    assert isinstance(arguments, list)
    assert {word for word in arguments if word.startswith("--")} <= constants(
        (folder / "train.py").read_text(encoding="utf-8")
    )


def test_the_script_has_no_cluster_code(folder):
    script = (folder / "train.py").read_text(encoding="utf-8")
    assert not re.search(r"SLURM_|PMI|OMPI|MASTER_|scontrol|subprocess", script)


def test_the_script_prints_the_whole_result(folder):
    assert constants((folder / "train.py").read_text(encoding="utf-8")) >= RESULT_KEYS.get(
        folder.name, {*TRAINED, *TOGETHER}
    )


def test_all_ranks_arrive_before_any_leaves(folder):
    script = (folder / "train.py").read_text(encoding="utf-8")
    end = EXERCISES[folder.name][1]
    # Horovod has no barrier for TensorFlow; with Ray, one process asks and waits for the answers of
    # the others.
    meets = max(
        script.rfind(text)
        for text in (".barrier()", "hvd.allreduce(tf.zeros(1))", "ray.get(", ".fit()")
    )
    assert 0 < meets < script.find(end) if end else "init(" not in script


def test_auto_would_choose_the_launcher_that_the_job_names(folder):
    """Or another one for the same framework, where the script does not show which is meant."""
    job = read_toml(folder / "job.toml", Job)
    source, held = read_script(folder), {"torch", "horovod"}
    chosen, _ = launchers.choose(script_case("train.py", source, frameworks=held, job=job))
    same = {"digits-ddp-srun": "torchrun"}
    assert chosen == same.get(folder.name, EXERCISES[folder.name][0])


def test_a_host_directory_that_an_exercise_binds_has_a_package(folder):
    sources = {text.split(":")[0] for text in read_toml(folder / "job.toml", Job).bind}
    assert sources <= set(DATASETS)


def test_the_readme_names_the_command(folder):
    assert f"toolkit run jobs/{folder.name}\n" in (folder / "README.md").read_text(encoding="utf-8")
