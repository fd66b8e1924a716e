"""Every rule: a job that breaks it, and one that nearly does."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.samples import FACTS, MANIFEST, make_case
from toolkit import sites
from toolkit.cli.groups import site as command
from toolkit.errors import ToolkitError
from toolkit.hostsetup import parts
from toolkit.images.sif import header as sif
from toolkit.launchers import LAUNCHERS
from toolkit.model.case import Case, Image, Target
from toolkit.model.image import BaseImage, Packages, Verdict
from toolkit.model.job import Job
from toolkit.model.site import PORTS, Access, Facts, Limits, OptionRule, Site, SitePartition, Use
from toolkit.rules import HOST, PURE, files, image
from toolkit.rules import job as of_job
from toolkit.slurm.client import Client

NEURON = sites.load("neuron")
COMMENT = {"comment": "field=nlp;appl=pytorch"}
RIGHT = {**COMMENT, "partition": "cas_v100_4", "gpus": 4, "nodes": 2, "time": "2:00:00"}
GIGABYTE = 10**9


def case(job: dict[str, Any] | None = None, site: Site = NEURON, **given: Any) -> Case:
    """Return a job that is right for Neuron, but for what is given."""
    merged = Job(**{**RIGHT, **(job or {})})
    return Case(merged, site, image=Image(manifest=given.pop("manifest", None)), **given)


def findings(given: Case) -> list[ToolkitError]:
    """Return the findings of all pure rules; each says where its rule is written and what to do."""
    found = [finding for rule in PURE for finding in rule(given)]
    assert all(finding.source and finding.advice for finding in found)
    return found


def live(job: dict[str, Any], **changes: Any) -> Case:
    """Return a case whose partition Slurm describes."""
    return case(job, facts=Facts(partitions=(replace(FACTS.partitions[1], **changes),)))


def used(job: dict[str, Any] | None = None, limits: Limits | None = None, **use: int) -> Case:
    """Return a case whose user has jobs already, and whose limits may be Slurm's own."""
    known = {"cas_v100_4": limits} if limits else {}
    return case(job, facts=Facts(mine={"cas_v100_4": Use(**use)}, limits=known))


def optional(kind: str, name: str, job: dict[str, Any]) -> Case:
    """Return a case whose site requires or forbids an option."""
    rule = OptionRule(why="so it is", source="guide", instead="do without")
    return Case(Job(**job), Site(name="x", **{kind: {name: rule}}))  # type: ignore[arg-type]


def meshed(arguments: str, **job: Any) -> Case:
    return case({"launcher": "torchrun", "arguments": tuple(arguments.split()), **job})


def driven(driver: str | None, **manifest: Any) -> Case:
    """Return a case on nodes with a driver, and an image with CUDA 12.4."""
    image = replace(MANIFEST, **{"frameworks": {"torch": "2.5.1+cu124"}, **manifest})
    return case(site=replace(NEURON, driver=driver), manifest=image)


def coded(gpu: str, *codes: str, **job: Any) -> Case:
    """Return a case on GPUs of a kind, and an image whose torch has code for these architectures."""
    partition = replace(NEURON.partitions["cas_v100_4"], gpu=gpu)
    site = replace(NEURON, partitions={"cas_v100_4": partition})
    manifest = replace(MANIFEST, gpu_code={"torch": codes}, frameworks={"torch": "2"})
    return case(job, site=site, manifest=manifest)


def unbuilt(driver: str | None = None, **job: Any) -> Case:
    """Return a case with the image of a recipe that is not built here."""
    given = case({"image": "pytorch_cuda", **job}, site=replace(NEURON, driver=driver))
    return given._replace(image=Image(path="/x/pytorch_cuda.sif", is_recipe=True))


def verified(site: str) -> tuple[Verdict, ...]:
    return (Verdict(name="driver", outcome="failed", detail="too old", site=site),)


def meeting(first: int, last: int, **env: str) -> Case:
    return case({"env": env}, site=replace(NEURON, ports=(first, last)))


def started(script: str, *programs: str, **job: Any) -> Case:
    """Return a case that runs a file or a program, in an image whose programs are known."""
    interpreter = {".jl": "julia"}.get(Path(script).suffix, "")
    target = Target(script, "/", "/", is_program="train" not in script, interpreter=interpreter)
    manifest, launcher = (
        replace(MANIFEST, programs=programs, frameworks={}),
        LAUNCHERS.get(job.get("launcher", "")),
    )
    return case({"gpus": 0, **job}, manifest=manifest, target=target, launcher=launcher)


H100, ARM = {"partition": "amd_h100_2", "gpus": 2}, {"partition": "gh200_1", "gpus": 1, "nodes": 1}
QOS = Limits(jobs_submitted=3, gpus=8, source="Slurm's QOS")
CUDART, COMPAT = (Packages(apt={name: "1"}) for name in ("cuda-cudart-12-4", "cuda-compat-12-4"))
NGC = BaseImage(reference="nvcr.io/nvidia/pytorch:22.03-py3")
# A case, the place of its only finding (none if empty), and words of it. A place with "?" is warned of.
CASES = [
    # the site's comment and options, by whatever way they are given
    (case(), "", ""),
    (case({"comment": None}), "--comment", "requires a comment"),
    (case({"comment": "field=nlp;appl=pytorhc"}), "--comment", "close: pytorch"),
    (case({"mem": "16G"}), "--mem", "memory goes with the cores"),
    (optional("forbidden", "mem", {"slurm": {"mem-per-cpu": "4G"}}), "--slurm mem-per-cpu", ""),
    (optional("forbidden", "mem", {"slurm": {"mem-per-gpu": "4G"}}), "--slurm mem-per-gpu", ""),
    (optional("forbidden", "mem", {"mem": "4G"}), "--mem", "does not take it: so it is"),
    (optional("forbidden", "licenses", {"slurm": {"licenses": "matlab:1"}}), "--slurm licenses", ""),
    (optional("forbidden", "mem-per-cpu", {"mem": "4G"}), "", ""),
    (optional("forbidden", "exclusive", {"exclusive": False, "gpus_per_node": 0}), "", ""),
    (optional("required", "mem", {"slurm": {"mem-per-cpu": "4G"}}), "", ""),
    (optional("required", "mem-per-cpu", {"mem": "4G"}), "--mem-per-cpu", "wants it: so it is"),
    # the partition, as it is written and as Slurm describes it
    (case({"partition": "jupyter", "gpus": 0}), "--partition", "takes no batch jobs"),
    (case({"nodes": 12, "gpus": 2}), "--nodes", "has 11 nodes, 12 were asked for"),
    (case({"gpus": 8}), "--gpus", "has 4 GPUs (V100), 8 were asked for (site neuron, 2026-08); with as many: cas_v100nv_8, amd_a100nv_8"),
    (case({"cpus_per_task": 11}), "--cpus-per-task", "40 CPUs per node, 44 were asked for"),
    (case({"time": "72:00:00"}), "--time", "2880 minutes at most, 4320 were asked for"),
    (case({"time": "8:00:00", "interactive": True}), "", ""),
    (case({"time": "8:01:00", "interactive": True}), "--time", "480 minutes at most, 481 were asked for"),
    (live({"gpus": 8}, gpus=8, nodes=1), "--nodes", "partition cas_v100_4 has 1 node up, 2 were asked for (sinfo)"),
    (live({"nodes": 4}, nodes=3, max_nodes=2), "--nodes", "has 2 nodes at most for one job, 4 were asked for"),
    (live({}, available=False), "--partition?", "cas_v100_4 is switched off for now"),
    # what one user may have
    (case({**H100, "nodes": 2}), "", ""),
    (case({**H100, "nodes": 3}), "--nodes", "may have 4 GPUs in amd_h100_2, 6 were asked for"),
    (used(submitted=19, running=9, gpus=36), "", ""),
    (used(submitted=20, running=9), "--partition", "you have 20, and this would be 1 more"),
    (used({"array": "0-2"}, submitted=17), "", ""),
    (used({"array": "0-3%2"}, submitted=17), "--partition", "this would be 4 more"),
    (used(limits=QOS, submitted=2), "", ""),
    (used(limits=QOS, submitted=3), "--partition", "may have 3 jobs in cas_v100_4; you have 3, and this would be 1 more (Slurm's QOS)"),
    (used({"nodes": 3}, limits=QOS), "--nodes", "may have 8 GPUs in cas_v100_4, 12 were asked for"),
    # the mesh and the checkpoint among the script's arguments
    (meshed("--tensor-parallel-size 4 --pipeline-parallel-size 2"), "", ""),
    (meshed("--tensor_model_parallel_size=4 --pipeline-parallel-size 4"), "--tensor_model_parallel_size",
     "8 ranks (2 nodes x 4) cannot form a mesh of --tensor_model_parallel_size 4 x --pipeline-parallel-size 4"),
    (meshed("--parallelism.tensor_parallel_degree 3"), "--parallelism.tensor_parallel_degree", "mesh of"),
    (meshed("--tensor-parallel-size 3 --tensor-parallel-size 2"), "", ""),  # argparse takes the last
    (meshed("--tensor-parallel-size 3 --tensor_parallel_size 2"), "", ""),
    (meshed("--tensor-parallel-size 0"), "", ""),
    (meshed("--tensor-parallel-size auto"), "", ""),
    (meshed("--tensor-parallel-size 3", launcher="ray"), "", ""),  # it starts processes of its own
    (meshed("--context-parallel-size 3", ntasks_per_node=3), "", ""),
    (meshed("--context-parallel-size 3", nodes=None, gpus="4,2"), "", ""),
    (meshed("--context-parallel-size 4", nodes=None, gpus="4,2"), "--context-parallel-size", "6 ranks (one for each GPU)"),
    (meshed("--checkpoint /tmp/gpt"), "--checkpoint?", "own /tmp"),
    (meshed("--checkpoint-dir=/dev/shm/gpt"), "--checkpoint-dir?", "own /dev/shm"),
    (meshed("--checkpoint /tmp/gpt", nodes=1), "", ""),
    (meshed("--checkpoint /tmpfiles/gpt"), "", ""),
    # the program that starts the ranks
    (started("train.jl", "julia"), "", ""),
    (started("train.jl"), "", ""),  # of a manifest from before programs were listed
    (started("train.jl", "bash", "julie"), "SCRIPT", "pytorch_cpu has no program julia on its PATH"),
    (started("julia", "bash"), "SCRIPT", "an image with julia"),
    (started("julia", "bash", env={"PATH": "/mine"}), "SCRIPT?", ""),
    (started("./train", "bash"), "", ""),
    (started("nvidia-smi", "bash"), "SCRIPT", ""),
    (started("nvidia-smi", "bash", gpus=1), "", ""),  # --nv shows those of the driver
    (started("jupyter", "bash", launcher="notebook"), "", ""),  # it starts a script of ours
    (started("toolkit.submit", "bash", launcher="submitit"), "", ""),
    # the image's CUDA, and the driver
    (driven("535.86"), "", ""),
    (driven(None), "", ""),
    (driven("470.57"), "--image", "CUDA 12.4 of the image needs NVIDIA's driver"),
    (driven("470.57", packages=COMPAT), "--image?", "compat"),
    (driven("470.57", frameworks={}, packages=CUDART), "--image", "CUDA 12.4"),
    (driven("418.40", frameworks={}, base=NGC), "--image", "NVIDIA's driver"),
    (driven("535.86", frameworks=MANIFEST.frameworks), "--gpus?", "are built for CPUs"),
    (driven(None, verified=verified("neuron")), "--image", "too old"),
    (driven(None, verified=verified("other")), "", ""),
    (case({"gpus": 0}, manifest=replace(MANIFEST, frameworks={"torch": "2.5.1+cu124"}), site=replace(NEURON, driver="1.0")), "", ""),
    # the GPUs, and what the image has code for
    (coded("V100 NVLink", "sm_75", "sm_80"), "--image", "has no code for V100 NVLink (sm_70): torch has sm_75, sm_80"),
    (coded("V100", "sm_75", gpus=0), "", ""),
    (coded("A100", "sm_70", "compute_75"), "", ""),  # the driver compiles it
    (coded("A40", "sm_80"), "", ""),  # of the same major version
    (coded("A100", "sm_86"), "--image", "no code for A100 (sm_80)"),
    (coded("H200", "sm_90a"), "", ""),
    (coded("B300", "sm_100a"), "--image", "no code for B300 (sm_103)"),
    (coded("A100", f"sm_{'9' * 5000}"), "--image", "no code for A100"),
    (coded("unheard-of", "sm_70"), "", ""),
    (unbuilt(partition="amd_h100_2", gpus=2), "", ""),
    (unbuilt(), "--image", "; --image pytorch_cuda12, which has"),
    (unbuilt("570.86", partition="amd_h100_2", gpus=2), "--image", "CUDA 13.0 of the image needs NVIDIA's driver 580 or newer, the nodes have 570.86"),
    # ports and modules
    (meeting(20000, 20063), "", ""),
    (meeting(20000, 20062), "ports", "ranks cannot meet at ports 20000 to 20062"),
    (meeting(1000, 20000), "ports", ""),
    (meeting(20000, 70000), "ports", ""),
    (meeting(*PORTS, MASTER_PORT="29500"), "--env?", "the same for every job"),
    *((meeting(*PORTS, MASTER_PORT=text), "--env", "is no port from 1024") for text in ("abc", "99999", "80", "²")),
    (meeting(*PORTS, MASTER_PORTS="80"), "", ""),
    (case({"modules": ("gcc", "cuda/11.9")}, site=replace(NEURON, available_modules=("cuda/11.8", "gcc/12"))), "--module", "module cuda/11.9"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "place", "words"), CASES, ids=range(len(CASES)))
def test_a_rule_finds_its_fault_and_leaves_the_nearest_case_alone(
    given: Case, place: str, words: str
) -> None:
    found = findings(given)
    assert [f"{each.place}{'?' * each.is_warning}" for each in found] == ([place] if place else [])
    assert all(words in each.summary for each in found), found[0].summary


@pytest.mark.parametrize(
    ("array", "count"),
    [("1-7:2", 4), ("1,3,5-6%2", 4), (7, 1), ("nonsense", 1), ("0-9,0-9", 10), ("[0-4,2-5]", 6), ("0-3999999", 4_000_000)],
)  # fmt: skip
def test_each_element_of_an_array_counts_once(array: str | int, count: int) -> None:
    limits = Limits(jobs_submitted=count + 1, source="QOS")
    assert not findings(used({"array": array}, limits, submitted=1))
    (finding,) = findings(used({"array": array}, limits, submitted=2))
    assert f"and this would be {count} more" in finding.cause


def test_all_rules_are_listed_and_can_be_shown() -> None:
    written = [
        value
        for module in (files, image, of_job)
        for name, value in vars(module).items()
        if inspect.isgeneratorfunction(value) and name[0] != "_"
    ]
    listed = json.loads(CliRunner().invoke(command, ["rules", "--json"]).stdout)
    assert {*HOST, *PURE} == {*written} - {of_job.contradictions, files.unseen}
    assert len(listed) == len(HOST) + len(PURE)
    assert all(listed.values())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, in a home of its own: an image for ARM, and a script that nobody may read."""
    directory = tmp_path / "home" / "project"
    (directory / "recipes").mkdir(parents=True)
    (directory / "recipes/pytorch_cpu.lock").touch()
    head = sif.build_header((0, 0, 0), b"0" * 16, 0, "aarch64")
    for name in ("i.sif", "ToBeDelete_i.sif"):
        (directory / name).write_bytes(head)
    (directory / "i.json").touch()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERE", str(directory))
    monkeypatch.delenv("HF_HOME", raising=False)
    for name, days in (("i.sif", 14.4), ("ToBeDelete_i.sif", 1)):
        read = time.time() - days * 86400
        os.utime(directory / name, (read, read))
    monkeypatch.setattr(parts, "DATASETS", {str(directory / "data"): "dataset-x"})
    return directory


KEPT = {"submit_directory": "$HERE", "purge_days": 15}
ARMS = {"x": SitePartition(arch="aarch64", gpus=1), "y": SitePartition(gpus=1)}
# A rule that looks, the settings, the keys of the site, the place of its only finding, and words of it.
LOOKED: list[tuple[Any, dict[str, Any], dict[str, Any], str, str]] = [
    (files.directory, {}, {"submit_directory": "$HERE/.."}, "", ""),
    (files.directory, {}, {"submit_directory": "$HERE/x"}, "directory", "/project/x only"),
    (files.hidden, {}, {"private_directories": ("/proj",)}, "", ""),
    (files.hidden, {}, {"private_directories": ("/",)}, "directory", "cannot be seen by the nodes: each has a / of its own"),
    (files.script, {}, {}, "SCRIPT", "you may not read"),
    (files.binds, {"bind": ("recipes:/x",)}, {}, "", ""),
    (files.binds, {"bind": ("recipe:/x",)}, {}, "--bind", "close:"),
    (files.binds, {"bind": ("data:/x",)}, {}, "--bind", "apt-get install dataset-x (Debian's package of it)"),
    (files.datasets, {"datasets": ("a", "c")}, {"datasets": {"a": "$HERE", "b": "/not/there"}}, "", ""),
    (files.datasets, {"datasets": ("b",)}, {"datasets": {"b": "/not/there"}}, "datasets", "b should be in /not/there"),
    (files.datasets, {"datasets": ("b",), "bind": ("recipes:/data/b",)}, {"datasets": {"b": "/not/there"}}, "", ""),
    (files.purge, {"image": "i.sif"}, {"submit_directory": "$HERE"}, "", ""),
    (files.purge, {"image": "i.sif"}, {**KEPT, "purge_days": 17}, "", ""),
    (files.purge, {"image": "i.sif"}, {**KEPT, "purge_days": 16}, "--image?", "was not read for 14 days; after 16 the site deletes it"),
    (files.purge, {"image": "i.sif", "time": "2-00:00:00"}, {**KEPT, "purge_days": 17}, "--image?", "maybe before this job ends"),
    (files.purge, {"image": "i.sif"}, {"scratch": "$HERE", "purge_days": 15}, "--image?", "was not read for 14 days; after 15 the site deletes it"),
    (files.purge, {"image": "ToBeDelete_i.sif"}, KEPT, "--image", "is about to be deleted"),
    (files.space, {}, {}, "", ""),
    (files.cache, {"env": {"HF_HOME": "/homes"}}, {"scratch": "/scratch"}, "", ""),
    (files.cache, {"env": {"HF_HOME": "$HERE/hf"}}, {"scratch": "/scratch"}, "HF_HOME?", "HF_HOME=/scratch/cache"),
    (files.architecture, {}, {}, "", ""),
    (files.architecture, {"image": "i.sif"}, {}, "--image?", "guessed"),
    (files.architecture, {"image": "i.sif", "runtime": "pyxis"}, {}, "", ""),  # of an image that is no SIF
    (files.architecture, {"image": "i.sif"}, {"access": "local-cluster"}, "--image", "the nodes are this machine"),
    (files.architecture, {"image": "i.sif", "partition": "x"}, {"partitions": ARMS}, "", ""),
    (files.architecture, {"image": "i.sif", "partition": "y"}, {"partitions": ARMS}, "--image", "the nodes of y are x86_64"),
    (files.architecture, {"image": "i.sif", "partition": "y", "gpus": 2}, {"partitions": ARMS}, "--image", "; an image for x86_64, or a partition for aarch64"),
]  # fmt: skip


def looking(here: Path, job: dict[str, Any], site: dict[str, Any], **given: Any) -> Case:
    """Return a case whose files are in a directory."""
    job = {"launcher": "none", "nodes": 1, "ntasks_per_node": 1, **job}
    env = {name: os.path.expandvars(text) for name, text in job.get("env", {}).items()}
    binds = tuple(f"{here}/{text}" for text in job.get("bind", ()))
    image = {"image": str(here / job.get("image", "")), "is_here": "image" in job, "manifest": None}
    given = {**image, "cluster": Client(Access()), "folder": str(here), "facts": Facts(), **given}
    return make_case({**job, "bind": binds, "env": env}, site=Site(name="x", **site), **given)


@pytest.mark.parametrize(("rule", "job", "site", "place", "words"), LOOKED, ids=range(len(LOOKED)))
def test_a_rule_that_looks_finds_its_fault_and_leaves_the_nearest_alone(
    rule: Any, job: dict[str, Any], site: dict[str, Any], place: str, words: str, here: Path
) -> None:
    found = [*rule(looking(here, job, site))]
    assert [f"{each.place}{'?' * each.is_warning}" for each in found] == ([place] if place else [])
    assert all(words in each.summary and each.source and each.advice for each in found), found


@pytest.mark.parametrize(
    ("built", "warned"), [("", False), ("other", True), (hashlib.sha256().hexdigest(), False)]
)
def test_an_image_of_another_lock_is_warned_of(built: str, warned: bool, here: Path) -> None:
    found = looking(here, {"image": "i.sif"}, {}, manifest=replace(MANIFEST, locked=built))
    told = [finding.summary for finding in files.locked(found)]
    assert [text for text in told if "was built from another lock" in text] == told
    assert bool(told) is warned


QUOTA = """\
Disk quotas for user me (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
server:/home  51200  61440  71680       0    1200       0       0       0
"""
LUSTRE = "     /scratch  104857600*  104857600 209715200       -   20000       0       0       -\n"


@pytest.mark.parametrize(
    ("said", "left"), [(QUOTA, 10 << 20), (LUSTRE, 0), ("", None), ("/x 5 0 0", None)]
)
def test_what_a_quota_leaves(said: str, left: int | None) -> None:
    assert files.parse_quota(said) == left


@pytest.mark.parametrize(
    ("free", "quota", "place", "words"),
    [
        (20, 20, "", ""),
        (20, 0.5, "directory?", "your quota leaves 500 MB"),
        (0.05, 20, "directory", "the file system has 50 MB"),
    ],
)
def test_space_of_the_directory(
    free: float, quota: float, place: str, words: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=int(free * GIGABYTE))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(files, "read_quota", lambda _: int(quota * GIGABYTE))
    found = [*files.space(looking(here, {}, {}))]
    assert [f"{each.place}{'?' * each.is_warning}" for each in found] == ([place] if place else [])
    assert all(words in each.cause for each in found)


def test_the_directory_of_the_case_is_judged_and_not_that_of_the_process() -> None:
    (found,) = files.directory(make_case(directory="/gone"))
    assert found.cause.startswith("/gone cannot be written to")
