"""Inputs of plans for tests: a job on an invented cluster, changed key by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.run import Failure
from toolkit.model.site import Facts, Partition, Site
from toolkit.planning.inputs import Inputs

MANIFEST = Manifest(
    name="pytorch_cpu",
    sif_id="0" * 32,
    size=1,
    recipe_hash="0",
    built="2026-11-21T00:00:00+00:00",
    frameworks={"torch": "2.13.0+cpu", "horovod": "0.28.1"},
    mpi=("pmix",),
)
LOCAL = Site(
    name="local",
    access="local-cluster",
    interface="eth0",
    environment={"OMPI_MCA_mpi_yield_when_idle": "1"},
)
NEURON = Site(name="neuron", modules=("singularity/4.3.4",), scratch="/scratch/$USER")
PARTITIONS = (
    Partition(
        name="main",
        default=True,
        nodes=2,
        cpus=4,
        memory=4000,
        gpus=2,
        gpu_type="v100",
        max_minutes=1440,
    ),
    Partition(
        name="cas_v100_4",
        nodes=11,
        cpus=40,
        memory=380000,
        gpus=4,
        gpu_type="v100",
        max_nodes=10,
        max_minutes=2880,
    ),
)
FACTS = Facts(partitions=PARTITIONS, mpi=("none", "pmi2", "pmix", "pmix_v4"), container="apptainer")


def inputs(job: dict[str, Any] | None = None, **changes: Any) -> Inputs:
    """Two nodes with two ranks each on the local cluster; ``job`` overrides settings, ``changes`` everything else."""
    settings: dict[str, Any] = {
        "image": "pytorch_cpu",
        "launcher": "torchrun",
        "nodes": 2,
        "ntasks_per_node": 2,
        "arguments": ("--epochs", "12"),
    }
    merged = Job(**(settings | (job or {})))
    defaults = Inputs(
        job=merged,
        origins={"nodes": "--nodes", "launcher": "default"},
        site=LOCAL,
        facts=FACTS,
        image="/home/user/.local/share/toolkit/images/pytorch_cpu.sif",
        manifest=MANIFEST,
        script="train.py",
        folder="/home/user/project",
        directory="/home/user/project",
        run_directory="/home/user/project/runs/train-0001",
    )
    return defaults._replace(**changes)


def first(failures: Sequence[Failure]) -> Failure | None:
    """Return the first of some failures; None if there is none."""
    return failures[0] if failures else None
