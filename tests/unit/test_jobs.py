"""The exercises that are shipped: whole, readable, and free of cluster code. That they train is shown on the cluster."""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.samples import read_script, script_case
from toolkit import launchers
from toolkit.config import shipped
from toolkit.files import read_toml
from toolkit.hostsetup.parts import DATASETS
from toolkit.model.base import toml
from toolkit.model.job import Job

# Those that are more than a training have tests of their own.
FOLDERS = [
    path.parent
    for path in sorted(shipped("jobs").glob("*/train.py"))
    if path.parent.name not in ("nccl-allreduce", "submitit-checkpoint")
]
KEYS = set(
    "summary script arguments image launcher nodes ntasks_per_node cpus_per_task time max_restarts"
    " bind datasets".split()
)
TRAINED = {"accuracy", "loss", "epochs", "samples_per_second", "seconds"}
TOGETHER = {"world_size", "parameters_equal", "max_parameter_difference"}
# Each rank has a part of the network, so that the result is compared with one process.
APART = {"world_size", "loss", "equal_to_one_process", "tolerance", "samples_per_second", "seconds"}
# What is no training of several ranks tells of something else.
RESULT_KEYS = {
    "fsdp": {*APART, "steps", "resumed_after", "max_difference"},
    "tensor-parallel": {*APART, *TRAINED, "max_loss_difference"},
    "pipeline": {*APART, *TRAINED, "max_gradient_difference", "bubble", "bubble_by_arithmetic"},
    "parallel-3d": {*APART, *TRAINED, "max_loss_difference", "mesh"},
    "digits-dataparallel": {*TRAINED, "gpus"},
    "ray-tasks": {"tasks", "actors", "nodes", "tasks_on", "actors_on"},
    "ray-tune": {"accuracy", "settings", "trials", "failed", "stopped_early", "hosts"},
    "gpu-count": {"nodes", "gpus_given", "gpus_usable", "wrong", "all_reduce"},
}
# How ranks meet, and then leave. One process, and the workers of TensorFlow, do neither.
MEETINGS = (".barrier()", "hvd.allreduce(tf.zeros(1))", "ray.get(", ".fit()")
ENDS = ("dist.destroy_process_group()", "hvd.shutdown()", "ray.shutdown()")

pytestmark = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def constants(script: str) -> set[str]:
    """The strings in the code of a script, its comments left out."""
    nodes = ast.walk(ast.parse(script))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {value for value in values if isinstance(value, str)}


def test_the_job_file_has_known_keys_and_names_what_is_there(folder):
    job = toml((folder / "job.toml").read_text(encoding="utf-8"))
    assert set(job) <= KEYS
    assert job["summary"]
    assert (folder / str(job["script"])).is_file()
    assert (shipped("recipes") / f"{job['image']}.toml").is_file()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", str(job["time"]))
    sources = {text.split(":")[0] for text in read_toml(folder / "job.toml", Job).bind}
    assert sources <= set(DATASETS)
    assert f"toolkit run jobs/{folder.name}\n" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_script_has_its_options_and_prints_the_whole_result(folder):
    script = (folder / "train.py").read_text(encoding="utf-8")
    arguments = read_toml(folder / "job.toml", Job).arguments
    options = {word for word in arguments if word.startswith("--")}
    assert options | RESULT_KEYS.get(folder.name, {*TRAINED, *TOGETHER}) <= constants(script)
    assert not re.search(r"SLURM_|PMI|OMPI|MASTER_|scontrol|subprocess", script)


def test_all_ranks_arrive_before_any_leaves(folder):
    script = (folder / "train.py").read_text(encoding="utf-8")
    is_alone = folder.name == "digits-dataparallel" or folder.name.startswith("tensorflow-")
    meets, leaves = (max(script.rfind(text) for text in texts) for texts in (MEETINGS, ENDS))
    assert (meets, leaves) == (-1, -1) if is_alone else 0 < meets < leaves


def test_auto_would_choose_the_launcher_that_the_job_names(folder):
    """Or another one for the same framework, where the script does not show which is meant."""
    job = read_toml(folder / "job.toml", Job)
    source, held = read_script(folder), {"torch", "horovod"}
    chosen, _ = launchers.choose(script_case("train.py", source, frameworks=held, job=job))
    assert chosen == ("torchrun" if folder.name == "digits-ddp-srun" else job.launcher)
