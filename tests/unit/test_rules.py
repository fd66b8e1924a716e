"""Every rule: a job that breaks it, and one that nearly does."""

from __future__ import annotations

import inspect
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.samples import FACTS, LOCAL, MANIFEST, make_case
from toolkit import sites
from toolkit.cli.groups import site as command
from toolkit.errors import PlanError, ToolkitError
from toolkit.hostsetup import parts
from toolkit.images.sif import header as sif
from toolkit.model.case import Case, Host, Image, MissingPath, UnreadFile
from toolkit.model.image import BaseImage, Packages, Verdict
from toolkit.model.job import Job
from toolkit.model.site import PORTS, Access, Facts, Limits, NodeFacts, OptionRule, Site, Use
from toolkit.planning import host
from toolkit.planning.host import read_host
from toolkit.planning.plan import decide
from toolkit.rules import RULES, files, image, options, partition
from toolkit.slurm.client import Client

NEURON = sites.load("neuron")
RIGHT: dict[str, Any] = {
    "comment": "field=nlp;appl=pytorch",
    "partition": "cas_v100_4",
    "gpus": 4,
    "nodes": 2,
    "time": "2:00:00",
}
GIGABYTE = 10**9


def case(job: dict[str, Any] | None = None, site: Site = NEURON, **given: Any) -> Case:
    """Return a job that is right for Neuron, but for what is given."""
    merged = Job(**{**RIGHT, **(job or {})})
    return Case(merged, site, image=Image(manifest=given.pop("manifest", None)), **given)


def findings(given: Case) -> list[ToolkitError]:
    """Return the findings of all rules; each says where its rule is written and what to do."""
    found = [finding for rule in RULES for finding in rule.findings(given)]
    assert all(finding.source and finding.advice for finding in found)
    return found


def live(job: dict[str, Any], **changes: Any) -> Case:
    """Return a case whose partition Slurm describes."""
    return case(job, facts=Facts(partitions=(replace(FACTS.partitions[1], **changes),)))


def on_nodes(**job: str) -> Case:
    nodes = {
        "nid001": NodeFacts(partitions=("cas_v100_4", "debug"), features=("intel", "rack1")),
        "nid002": NodeFacts(partitions=("cas_v100_4",), features=("intel", "rack2")),
        "gpu7": NodeFacts(partitions=("debug",), features=("amd",)),
    }
    return case(job, facts=Facts(nodes=nodes))


def used(job: dict[str, Any] | None = None, limits: Limits | None = None, **use: int) -> Case:
    """Return a case whose user has jobs already, and whose limits may be Slurm's own."""
    known = {"cas_v100_4": limits} if limits else {}
    return case(job, facts=Facts(mine={"cas_v100_4": Use(**use)}, limits=known))


def optional(kind: str, name: str, job: dict[str, Any]) -> Case:
    """Return a case whose site requires or forbids an option."""
    rule = OptionRule(why="so it is", source="guide", instead="do without")
    return Case(Job(**job), Site(name="x", **{kind: {name: rule}}))  # type: ignore[arg-type]


def seen(**host: Any) -> Case:
    """Return a case with facts of this machine, on a site with a scratch directory."""
    site = replace(NEURON, scratch="/scratch/me", driver="535.86", ports=(60000, 65535))
    return case(site=site, host=Host(**host))


def unread(path: str, days: float) -> Case:
    return seen(unread=(UnreadFile("--image", path, days),))


def elsewhere(job: dict[str, Any] | None = None, site: Site = NEURON) -> Case:
    """Return a case whose image is of another architecture than this machine."""
    host = Host(architecture="aarch64", machine="x86_64")
    return case(job, host=host) if site is NEURON else Case(Job(), site, host=host)


def meshed(arguments: str, **job: Any) -> Case:
    return case({"launcher": "torchrun", "arguments": tuple(arguments.split()), **job})


def driven(driver: str | None, **manifest: Any) -> Case:
    """Return a case on nodes with a driver, and an image with CUDA 12.4."""
    image = replace(MANIFEST, **{"frameworks": {"torch": "2.5.1+cu124"}, **manifest})
    return case(site=replace(NEURON, driver=driver), manifest=image)


def verified(site: str) -> tuple[Verdict, ...]:
    return (Verdict(name="driver", outcome="failed", detail="too old", site=site),)


def locked(built: str, today: str) -> Case:
    return case({"gpus": 0}, manifest=replace(MANIFEST, locked=built), host=Host(lock=today))


def meeting(first: int, last: int, **env: str) -> Case:
    return case({"env": env}, site=replace(NEURON, ports=(first, last)))


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
    (optional("forbidden", "nice", {"slurm": {"nice": True}}), "--slurm nice", ""),
    (optional("forbidden", "mem-per-cpu", {"mem": "4G"}), "", ""),
    (optional("forbidden", "exclusive", {"exclusive": False, "gpus_per_node": 0}), "", ""),
    (optional("required", "mem", {"slurm": {"mem-per-cpu": "4G"}}), "", ""),
    (optional("required", "nice", {"slurm": {"nice": True}}), "", ""),
    (optional("required", "mem-per-cpu", {"mem": "4G"}), "--mem-per-cpu", "wants it: so it is"),
    # the partition, as it is written and as Slurm describes it
    (case({"partition": "jupyter", "gpus": 0}), "--partition", "takes no batch jobs"),
    (case({"nodes": 11}), "", ""),
    (case({"nodes": 12, "gpus": 2}), "--nodes", "has 11 nodes, 12 were asked for"),
    (case({"gpus": 8}), "--gpus", "has 4 GPUs (V100), 8 were asked for (site neuron, 2026-08); with as many: cas_v100nv_8, amd_a100nv_8"),
    (case({"cpus_per_task": 10}), "", ""),
    (case({"cpus_per_task": 11}), "--cpus-per-task", "40 CPUs per node, 44 were asked for"),
    (case({"time": "48:00:00"}), "", ""),
    (case({"time": "72:00:00"}), "--time", "2880 minutes at most, 4320 were asked for"),
    (case({"time": "8:00:00", "interactive": True}), "", ""),
    (case({"time": "8:01:00", "interactive": True}), "--time", "480 minutes at most, 481 were asked for"),
    (live({"gpus": 8}, gpus=8, nodes=1), "--nodes", "partition cas_v100_4 has 1 node up, 2 were asked for (sinfo)"),
    (live({"nodes": 4}, nodes=3, max_nodes=2), "--nodes", "has 2 nodes at most for one job, 4 were asked for"),
    (live({}, available=False), "--partition?", "cas_v100_4 is switched off for now"),
    # nodes and features
    (on_nodes(nodelist="nid[001-002]"), "", ""),
    (on_nodes(nodelist="./nodes.txt"), "", ""),
    (on_nodes(exclude="gpu7"), "", ""),
    (on_nodes(nodelist="nid[002-003]"), "--nodelist", "the cluster has no node 'nid003'"),
    (on_nodes(exclude="zzz"), "--exclude", "the cluster has no node 'zzz' (sinfo); sinfo --Node"),
    (on_nodes(nodelist="nid[002"), "--nodelist", "'nid[002' is not a host list: a bracket is not closed"),
    (on_nodes(nodelist="gpu7"), "--nodelist", "node gpu7 is in partition debug, not in cas_v100_4 (sinfo); --partition debug"),
    (on_nodes(constraint="intel&rack1"), "", ""),
    (on_nodes(constraint="[rack1*1&rack2*1]"), "", ""),
    (on_nodes(constraint="(rack1|amd)&intel"), "", ""),
    (on_nodes(constraint="intel&rak1"), "--constraint", "no node has the feature 'rak1'"),
    (on_nodes(constraint="intel|a100"), "--constraint", "no node has the feature 'a100'"),
    (on_nodes(constraint="amd"), "--constraint", "no node of partition cas_v100_4 has amd (sinfo); with it: --partition debug"),
    (on_nodes(constraint="rack1,rack2"), "--constraint", "no node of partition cas_v100_4 has rack1,rack2 (sinfo); sinfo"),
    (case({"nodelist": "zzz", "constraint": "zzz"}), "", ""),  # of nodes that were not queried nothing is known
    # what one user may have
    (case({**H100, "nodes": 2}), "", ""),
    (case({**H100, "nodes": 3}), "--nodes", "may have 4 GPUs in amd_h100_2, 6 were asked for"),
    (used(submitted=19, running=9, gpus=36), "", ""),
    (used(submitted=20, running=9), "--partition", "you have 20, and this would be 1 more"),
    (used({"array": "0-2"}, submitted=17), "", ""),
    (used({"array": "0-3%2"}, submitted=17), "--partition", "this would be 4 more"),
    (used(submitted=11, running=10), "--partition?", "you have 10: this one waits"),
    (used(submitted=5, running=5, gpus=37), "--nodes?", "your running jobs have 37, so that 8 more have to wait"),
    (used(limits=QOS, submitted=2), "", ""),
    (used(limits=QOS, submitted=3), "--partition", "may have 3 jobs in cas_v100_4; you have 3, and this would be 1 more (Slurm's QOS)"),
    (used({"nodes": 3}, limits=QOS), "--nodes", "may have 8 GPUs in cas_v100_4, 12 were asked for"),
    # files, directories, space
    (seen(submit_from="/scratch/me"), "directory", "takes jobs from /scratch/me only"),
    (seen(writable=False), "directory", "cannot be written to"),
    (seen(hidden={"--image": ("/tmp/x.sif", "/tmp")}), "--image", "/tmp/x.sif cannot be seen by the nodes"),
    (seen(unreadable="/home/other/train.py"), "SCRIPT", "you may not read /home/other/train.py"),
    (seen(binds=(MissingPath("/data", package="p"),)), "--bind", "apt-get install p"),
    (seen(datasets={"imagenet": "/apps/imagenet"}), "datasets", "imagenet should be in /apps/imagenet"),
    (unread("/scratch/me/i.sif", 13.0), "", ""),
    (unread("/scratch/me/i.sif", 14.5), "--image?", "touch /scratch/me/i.sif"),
    (unread("/scratch/me/ToBeDelete_i.sif", 1.0), "--image", "is about to be deleted"),
    (seen(free=2 * GIGABYTE, quota=2 * GIGABYTE), "", ""),
    (seen(free=2 * GIGABYTE, quota=GIGABYTE // 2), "directory?", "your quota leaves 500 MB"),
    (seen(free=50 * 10**6), "directory", "the file system has 50 MB"),
    (seen(home="/home/me", caches={"HF_HOME": "/home/meagre/hf"}), "", ""),
    (seen(home="/home/me", caches={"HF_HOME": "/home/me/hf"}), "HF_HOME?", "is in your home"),
    (Case(Job(), LOCAL, host=Host(home_quota=50 * GIGABYTE)), "", ""),
    (Case(Job(), LOCAL, host=Host(home_quota=GIGABYTE)), "cache?", "your quota leaves 1.0 GB"),
    # the mesh and the checkpoint among the script's arguments
    (meshed("--tensor-parallel-size 4 --pipeline-parallel-size 2"), "", ""),
    (meshed("--tensor-parallel-size 2"), "", ""),
    (meshed("--tensor_model_parallel_size=4 --pipeline-parallel-size 4"), "--tensor_model_parallel_size",
     "8 ranks (2 nodes x 4) cannot form a mesh of --tensor_model_parallel_size 4 x --pipeline-parallel-size 4"),
    (meshed("--parallelism.tensor_parallel_degree 3"), "--parallelism.tensor_parallel_degree", "mesh of"),
    (meshed("--tensor-parallel-size 3 --tensor-parallel-size 2"), "", ""),  # argparse takes the last
    (meshed("--tensor-parallel-size 3 --tensor_parallel_size 2"), "", ""),
    (meshed("--tensor-parallel-size"), "", ""),
    (meshed("--tensor-parallel-size 0"), "", ""),
    (meshed("--tensor-parallel-size auto"), "", ""),
    (meshed("--tensor 3 --size tensor-parallel-size"), "", ""),
    (meshed("--tensor-parallel-size 3", launcher="ray"), "", ""),  # it starts processes of its own
    (meshed("--context-parallel-size 3", ntasks_per_node=3), "", ""),
    (meshed("--context-parallel-size 3", nodes=None, gpus="4,2"), "", ""),
    (meshed("--context-parallel-size 4", nodes=None, gpus="4,2"), "--context-parallel-size", "6 ranks (one for each GPU)"),
    (meshed("--checkpoint /tmp/gpt"), "--checkpoint?", "own /tmp"),
    (meshed("--checkpoint-dir=/dev/shm/gpt"), "--checkpoint-dir?", "own /dev/shm"),
    (meshed("--checkpoint /tmp/gpt", nodes=1), "", ""),
    (meshed("--checkpoint /tmpfiles/gpt"), "", ""),
    (meshed("--checkpoint gpt --resume /tmp/gpt"), "", ""),
    # the image: architecture, driver, lock
    (seen(architecture="x86_64"), "", ""),
    (elsewhere(), "--image", "; an image for x86_64"),  # gh200_1 has one GPU on a node
    (elsewhere({"gpus": 1}), "--image", "an image for x86_64, or one of the partitions gh200_1"),
    (elsewhere(ARM), "", ""),
    (elsewhere(site=LOCAL), "--image", "the nodes are this machine"),
    (elsewhere(site=Site(name="x")), "--image?", "guessed"),
    (seen(image="/i.sif", foreign_manifest=True), "--image", "/i.sif was changed"),
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
    (locked("a", "b"), "--image?", "was built from another lock"),
    (locked("a", "a"), "", ""),
    (locked("a", ""), "", ""),
    (locked("", "b"), "", ""),
    # ports and modules
    (meeting(20000, 20063), "", ""),
    (meeting(20000, 20062), "ports", "ranks cannot meet at ports 20000 to 20062"),
    (meeting(30000, 20000), "ports", ""),
    (meeting(1000, 20000), "ports", ""),
    (meeting(20000, 70000), "ports", ""),
    (meeting(*PORTS, MASTER_PORT="29500"), "--env?", "the same for every job"),
    (meeting(29000, 30000, MASTER_PORT="29500"), "--env?", "the same for every job"),
    (meeting(20000, 29499, MASTER_PORT="29500"), "--env", "not among the ports"),
    (meeting(*PORTS, MASTER_PORT="80"), "--env", "not a port that a user can listen at"),
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


def test_a_site_that_wants_an_account_says_so() -> None:
    found = findings(Case(job=Job(qos="regular"), site=sites.load("perlmutter-like")))
    assert [each.place for each in found] == ["--account", "--constraint"]


@pytest.mark.parametrize(
    ("array", "count"),
    [
        *[(None, 1), ("0-9", 10), ("1-7:2", 4), ("1,3,5-6%2", 4), (7, 1), ("nonsense", 1)],
        *[("0-9,0-9", 10), ("[0-4,2-5]", 6), ("0-3999999", 4_000_000)],
    ],
)
def test_each_element_of_an_array_counts_once(array: str | int | None, count: int) -> None:
    limits = Limits(jobs_submitted=count + 1, source="QOS")
    assert not findings(used({"array": array}, limits, submitted=1))
    (finding,) = findings(used({"array": array}, limits, submitted=2))
    assert f"and this would be {count} more" in finding.cause


def test_a_rule_can_be_forced_with_a_reason_which_the_plan_keeps() -> None:
    wrong = {"partition": "main", "time": "2-00:00:00"}
    with pytest.raises(PlanError) as raised:
        decide(make_case(wrong))
    assert [finding.source for finding in raised.value.findings] == ["sinfo"]
    decided = decide(make_case(wrong, force="the limit was raised for us"))
    assert decided.forced is not None
    assert decided.forced.reason == "the limit was raised for us"
    cause = "--time: partition main gives 1440 minutes at most, 2880 were asked for (sinfo); "
    assert decided.forced.findings[0].startswith(cause)
    assert decided.warnings[-1] == f"forced: {decided.forced.findings[0]}"
    assert decide(make_case(force="no need")).forced is None, "there was nothing to force"


def test_what_no_script_can_be_written_for_cannot_be_forced() -> None:
    with pytest.raises(PlanError) as raised:
        decide(make_case({"time": "soon", "nodes": 9}, force="because"))
    assert [finding.place for finding in raised.value.findings] == ["--time"]


def test_warnings_do_not_stop_a_job() -> None:
    decided = decide(make_case({"env": {"MASTER_PORT": "29500"}}))
    assert decided.forced is None
    assert "MASTER_PORT=29500 is the same for every job" in decided.warnings[-1]


def test_all_rules_are_listed_and_can_be_shown() -> None:
    modules = (files, image, options, partition)
    written = [
        value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isgeneratorfunction(value) and name[0] != "_" and name != "contradictions"
    ]
    assert {rule.findings for rule in RULES} == set(written)
    assert len({rule.name for rule in RULES}) == len(RULES)
    listed = json.loads(CliRunner().invoke(command, ["rules", "--json"]).stdout)
    assert list(listed) == [rule.name for rule in RULES]
    assert all(listed.values())


def test_the_facts_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    inside = tmp_path / "me" / "project"
    inside.mkdir(parents=True)
    image, script = inside / "x.sif", inside / "train.py"
    image.write_bytes(sif.build_header((0, 0, 0), b"0" * 16, 0, "aarch64"))
    (inside / "x.json").write_text("{}")
    script.touch()
    old = time.time() - 5 * 86400
    os.utime(script, (old, old))
    site = Site(
        name="x",
        submit_directory=f"{tmp_path}/$USER",
        purge_days=15,
        datasets={"a": str(inside), "b": "/not/there"},
    )
    job = {"datasets": ("a", "b", "c"), "bind": (f"{inside}/gone:/x",)}
    given: dict[str, Any] = {"image": str(image), "manifest": None, "is_here": True}
    looked = make_case(job, site=site, cluster=Client(Access()), folder=str(inside), **given)
    seen = read_host(looked, inside)
    assert (seen.submit_from, seen.architecture, seen.foreign_manifest) == ("", "aarch64", True)
    assert seen.datasets == {"b": "/not/there"}
    assert [missing.path for missing in seen.binds] == [f"{inside}/gone"]
    days = {one.option: round(one.days) for one in seen.unread}
    assert days == {"--image": 0, "SCRIPT": 5}, "that we read the image's head counts as reading it"
    assert seen.free is not None
    assert seen.caches["HF_HOME"] == "/somewhere"
    assert read_host(looked, tmp_path).submit_from == f"{tmp_path}/me"


def test_data_that_is_missing_is_named_with_the_package_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        parts, "DATASETS", {str(tmp_path / "fashion-mnist"): "dataset-fashion-mnist"}
    )
    case = make_case({"bind": (f"{tmp_path}/fashion-mnist:/data:ro",)}, site=LOCAL)
    (finding,) = files.binds(case._replace(host=Host(binds=host._missing_binds(case))))
    assert "apt-get install dataset-fashion-mnist" in finding.advice
