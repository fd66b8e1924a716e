"""Cases of plans for tests: a job on an invented cluster, changed key by key."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from toolkit import source as reader
from toolkit.errors import PlanError, ToolkitError
from toolkit.launchers import INTERPRETERS, LAUNCHERS
from toolkit.model.case import Case, Image, Source, Target
from toolkit.model.image import Engine, Environment, Manifest, Python
from toolkit.model.job import Job
from toolkit.model.run import Failure
from toolkit.model.site import Facts, Partition, Site
from toolkit.planning.plan import decide
from toolkit.runtimes import DEFAULT, RUNTIMES
from toolkit.runtimes.base import parse_binds

MANIFEST = Manifest(
    name="pytorch_cpu",
    sif_id="0" * 32,
    size=1,
    recipe_hash="0",
    built="2026-11-21T00:00:00+00:00",
    frameworks={"torch": "2.13.0+cpu", "horovod": "0.28.1"},
    mpi=("pmix",),
)
HOLDS_ALL = replace(
    MANIFEST,
    frameworks=dict.fromkeys(("torch", "horovod", "tensorflow", "ray", "accelerate"), "2.60.0"),
)
LOCAL = Site(
    name="local",
    access="local-cluster",
    interface="eth0",
    environment={"OMPI_MCA_mpi_yield_when_idle": "1"},
)
NEURON = Site(name="neuron", modules=("singularity/4.3.4",), scratch="/scratch/$USER")
PARTITIONS = (
    Partition(name="main", default=True, nodes=2, cpus=4, memory=4000, gpus=2, gpu_type="v100", max_minutes=1440),
    Partition(name="cas_v100_4", nodes=11, cpus=40, memory=380000, gpus=4, gpu_type="v100", max_nodes=10, max_minutes=2880),
)  # fmt: skip
FACTS = Facts(partitions=PARTITIONS, mpi=("none", "pmi2", "pmix", "pmix_v4"), container="apptainer")
OPEN_MPI = replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4")
VENV = Environment(
    name="the virtual environment v",
    kind="venv",
    prefix="/home/user/v",
    python="/home/user/v/bin/python3",
    torchrun=True,
)
CONDA = Environment(
    name="torch",
    kind="conda",
    prefix="/home/user/.conda/envs/torch",
    python="/home/user/.conda/envs/torch/bin/python3",
    torchrun=True,
    variables={"HDF5_USE_FILE_LOCKING": "FALSE"},
)
ENGINE = Engine(program="docker", address="unix:///run/user/1000/docker.sock")
REFERENCE = "nvcr.io/nvidia/pytorch:25.06-py3"
# What a job in a runtime has beside its settings: those that it needs, and what is looked up for it.
LOOKED_UP: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apptainer": ({}, {}),
    "docker": ({"nodes": 1}, {"engine": ENGINE, "image": REFERENCE}),
    "conda": ({"conda_env": "torch"}, {"environment": CONDA, "image": ""}),
    "none": ({}, {"environment": VENV, "image": ""}),
}


def make_case(job: dict[str, Any] | None = None, **changes: Any) -> Case:
    """Two nodes with two ranks each on the local cluster; ``job`` overrides settings, ``changes`` everything else.

    Fields of the target and of the image are given by their own names.
    """
    settings: dict[str, Any] = {
        "image": "pytorch_cpu",
        "launcher": "torchrun",
        "nodes": 2,
        "ntasks_per_node": 2,
        "arguments": ("--epochs", "12"),
    }
    merged = Job(**(settings | (job or {})))
    project = "/home/user/project"
    target: dict[str, Any] = {"script": "train.py", "folder": project, "cwd": project}
    target |= {name: changes.pop(name) for name in Target._fields if name in changes}
    target["interpreter"] = INTERPRETERS.get(Path(target["script"]).suffix, "")
    manifest = changes.pop("manifest", MANIFEST)
    path = changes.pop("image", "/home/user/.local/share/toolkit/images/pytorch_cpu.sif")
    facts = {name: changes.pop(name) for name in ("is_here", "version") if name in changes}
    image = Image(path, manifest, **facts)
    if (environment := changes.get("environment")) is not None:
        changes["environment"] = replace(environment, manifest=manifest)
    binds, wrong = parse_binds(merged.bind, target["cwd"])
    given: dict[str, Any] = {
        "job": merged,
        "origins": {"nodes": "--nodes", "launcher": "default"},
        "site": LOCAL,
        "runtime": RUNTIMES.get(merged.runtime or DEFAULT),
        "launcher": LAUNCHERS.get(merged.launcher or ""),
        "target": Target(**target),
        "facts": FACTS,
        "image": image,
        "binds": binds,
        "run": f"{project}/runs/train-0001",
        "directory": str(Path.cwd()),
        "findings": tuple(wrong),
    }
    return Case(**(given | changes))


def on(runtime: str, job: dict[str, Any] | None = None, **changes: Any) -> Case:
    """Return a case in a runtime."""
    row = RUNTIMES.get(runtime)
    others = {"image": REFERENCE if row and row.image else ""}
    needed, looked_up = LOOKED_UP.get(runtime, ({}, others))
    return make_case({"runtime": runtime, **needed, **(job or {})}, **(looked_up | changes))


def findings(job: dict[str, Any], **changes: Any) -> list[ToolkitError]:
    """Return why a job is refused; nothing if it is not."""
    try:
        decide(on(job.get("runtime", DEFAULT), job, **changes))
    except PlanError as error:
        return list(error.findings)
    return []


def script_case(
    name: str, source: Source, *, frameworks: Collection[str] | None = None, job: Job
) -> Case:
    """A script that was read, of which nothing else is known but what an image holds."""
    manifest = None
    if frameworks is not None:
        manifest = replace(MANIFEST, frameworks=dict.fromkeys(frameworks, ""))
    runtime, image = RUNTIMES[job.runtime or DEFAULT], Image(manifest=manifest)
    return Case(job, LOCAL, target=Target(name), runtime=runtime, image=image, source=source)


def first(failures: Sequence[Failure]) -> Failure | None:
    """Return the first of some failures; None if there is none."""
    return failures[0] if failures else None


def write_files(directory: Path, files: dict[str, str]) -> Path:
    """Write files and return the directory, with its links resolved."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory.resolve()


def read_script(
    folder: Path,
    name: str = "train.py",
    *,
    cwd: Path | None = None,
    job: Job | None = None,
    known: Sequence[str] = (),
) -> Source:
    """Read a script in a directory, whose ranks have the modules that are ``known``."""
    directory = str(folder.resolve() if cwd is None else cwd)
    job = job or Job()
    python = Python(path="python3", version="3.11.2", modules=tuple(known))
    case = Case(
        job,
        Site(name="local"),
        target=Target(str(Path(directory) / name), str(folder.resolve()), directory),
        image=Image(manifest=replace(MANIFEST, pythons=(python,))),
        binds=parse_binds(job.bind, directory)[0],
    )
    return reader.read(case)


def source_of(text: str) -> Source:
    """Return what is read of the text of a script."""
    with tempfile.TemporaryDirectory() as folder:
        return read_script(write_files(Path(folder), {"train.py": text}))
