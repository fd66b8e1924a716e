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
from toolkit.cli.site import command
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
CUDA = replace(MANIFEST, frameworks={"torch": "2.5.1+cu124"})
GIGABYTE = 10**9


def case(job: dict[str, Any] | None = None, site: Site = NEURON, **given: Any) -> Case:
    merged = Job(**{**RIGHT, **(job or {})})
    return Case(merged, site, image=Image(manifest=given.pop("manifest", None)), **given)


def findings(given: Case) -> list[ToolkitError]:
    """Return the findings of all rules; each says where its rule is written and what to do."""
    found = [finding for rule in RULES for finding in rule.findings(given)]
    assert all(finding.source and finding.advice for finding in found)
    return found


def said(given: Case) -> list[tuple[str | None, bool, str]]:
    """Place, whether it stops the job, and the cause of each finding."""
    return [(each.place, not each.is_warning, each.cause) for each in findings(given)]


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ({}, None, ""),
        ({"comment": None}, "--comment", "requires a comment"),
        ({"comment": "field=nlp;appl=pytorhc"}, "--comment", "close: pytorch"),
        ({"mem": "16G"}, "--mem", "memory goes with the cores"),
        ({"time": "72:00:00"}, "--time", "2880 minutes at most, 4320 were asked for"),
        ({"time": "48:00:00"}, None, ""),
        ({"time": "8:01:00", "interactive": True}, "--time", "480 minutes at most, 481 were asked for"),
        ({"time": "8:00:00", "interactive": True}, None, ""),
        ({"gpus": 8}, "--gpus", "has 4 GPUs (V100), 8 were asked for"),
        ({"nodes": 11}, None, ""),
        ({"nodes": 12, "gpus": 2}, "--nodes", "has 11 nodes, 12 were asked for"),
        ({"partition": "amd_h100_2", "nodes": 3, "gpus": 2}, "--nodes", "may have 4 GPUs in amd_h100_2, 6 were asked for"),
        ({"partition": "amd_h100_2", "nodes": 2, "gpus": 2}, None, ""),
        ({"cpus_per_task": 11}, "--cpus-per-task", "40 CPUs per node, 44 were asked for"),
        ({"cpus_per_task": 10}, None, ""),
        ({"partition": "jupyter", "gpus": 0}, "--partition", "takes no batch jobs"),
    ],
)  # fmt: skip
def test_what_neuron_would_refuse_is_refused_before(
    change: dict[str, Any], place: str | None, says: str
) -> None:
    found = said(case(change))
    assert [one[:2] for one in found] == ([(place, True)] if place else [])
    assert all(says in cause for _, _, cause in found)


def test_a_site_that_wants_an_account_says_so() -> None:
    found = findings(Case(job=Job(qos="regular"), site=sites.load("perlmutter-like")))
    assert [each.place for each in found] == ["--account", "--constraint"]


V100 = FACTS.partitions[1]


@pytest.mark.parametrize(
    ("live", "job", "expected"),
    [
        ({"gpus": 8, "nodes": 1}, {"gpus": 8}, ("--nodes", True, "partition cas_v100_4 has 1 node up, 2 were asked for")),
        ({"nodes": 3, "max_nodes": 2}, {"nodes": 4}, ("--nodes", True, "partition cas_v100_4 has 2 nodes at most for one job, 4 were asked for")),
        ({"available": False}, {}, ("--partition", False, "cas_v100_4 is switched off for now")),
    ],
)  # fmt: skip
def test_what_slurm_says_goes_before_what_is_written_and_the_strictest_limit_is_named(
    live: dict[str, Any], job: dict[str, Any], expected: tuple[str, bool, str]
) -> None:
    assert said(case(job, facts=Facts(partitions=(replace(V100, **live),)))) == [expected]


NODES = {
    "nid001": NodeFacts(partitions=("cas_v100_4", "debug"), features=("intel", "rack1")),
    "nid002": NodeFacts(partitions=("cas_v100_4",), features=("intel", "rack2")),
    "gpu7": NodeFacts(partitions=("debug",), features=("amd",)),
}


@pytest.mark.parametrize(
    ("job", "cause", "step"),
    [
        ({"nodelist": "nid[001-002]"}, "", ""),
        ({"nodelist": "./nodes.txt"}, "", ""),
        ({"nodelist": "nid[002-003]"}, "the cluster has no node 'nid003'", "nid00"),
        ({"exclude": "zzz"}, "the cluster has no node 'zzz'", "sinfo --Node"),
        ({"exclude": "gpu7"}, "", ""),
        ({"nodelist": "nid[002"}, "'nid[002' is not a host list: a bracket is not closed", "nid001"),
        ({"nodelist": "gpu7"}, "node gpu7 is in partition debug, not in cas_v100_4", "debug"),
        ({"constraint": "intel&rack1"}, "", ""),
        ({"constraint": "[rack1*1&rack2*1]"}, "", ""),
        ({"constraint": "(rack1|amd)&intel"}, "", ""),
        ({"constraint": "intel&rak1"}, "no node has the feature 'rak1'", "rack"),
        ({"constraint": "intel|a100"}, "no node has the feature 'a100'", ""),
        ({"constraint": "amd"}, "no node of partition cas_v100_4 has amd", "--partition debug"),
        ({"constraint": "rack1,rack2"}, "no node of partition cas_v100_4 has rack1,rack2", "sinfo"),
    ],
)  # fmt: skip
def test_nodes_and_features_that_slurm_does_not_have_are_refused(
    job: dict[str, Any], cause: str, step: str
) -> None:
    found = findings(case(job, facts=Facts(nodes=NODES)))
    assert [each.cause for each in found] == ([cause] if cause else [])
    assert all(step in f"{each.close} {each.advice}" for each in found)
    assert not said(case(job, facts=Facts())), "of nodes that were not queried nothing is known"


@pytest.mark.parametrize(
    ("use", "job", "stops"),
    [
        (Use(submitted=19, running=9, gpus=36), {}, None),
        (Use(submitted=20, running=9), {}, True),
        (Use(submitted=17), {"array": "0-2"}, None),
        (Use(submitted=17), {"array": "0-3%2"}, True),
        (Use(submitted=11, running=10, gpus=0), {}, False),
        (Use(submitted=5, running=5, gpus=37), {}, False),
    ],
)
def test_what_a_user_has_already_counts(use: Use, job: dict[str, Any], stops: bool | None) -> None:
    found = said(case(job, facts=Facts(mine={"cas_v100_4": use})))
    assert [one[1] for one in found] == ([] if stops is None else [stops])


@pytest.mark.parametrize(
    ("job", "submitted", "cause"),
    [
        ({}, 2, ""),
        ({}, 3, "one user may have 3 jobs in cas_v100_4; you have 3, and this would be 1 more"),
        ({"nodes": 3}, 2, "one user may have 8 GPUs in cas_v100_4, 12 were asked for"),
    ],
)
def test_slurms_own_limits_go_before_those_that_are_written(
    job: dict[str, Any], submitted: int, cause: str
) -> None:
    limits = {"cas_v100_4": Limits(jobs_submitted=3, gpus=8, source="Slurm's QOS")}
    live = Facts(limits=limits, mine={"cas_v100_4": Use(submitted=submitted)})
    assert [each.cause for each in findings(case(job, facts=live))] == ([cause] if cause else [])


@pytest.mark.parametrize(
    ("array", "count"),
    [
        *[(None, 1), ("0-9", 10), ("1-7:2", 4), ("1,3,5-6%2", 4), (7, 1), ("nonsense", 1)],
        *[("0-9,0-9", 10), ("[0-4,2-5]", 6), ("0-3999999", 4_000_000)],
    ],
)
def test_each_element_of_an_array_counts_once(array: str | int | None, count: int) -> None:
    limits = {"main": Limits(jobs_submitted=count + 1, source="QOS")}
    job = Job(partition="main", array=array)
    fits, full = (Facts(limits=limits, mine={"main": Use(submitted=one)}) for one in (1, 2))
    assert said(Case(job=job, site=Site(name="x"), facts=fits)) == []
    ((_, _, cause),) = said(Case(job=job, site=Site(name="x"), facts=full))
    assert f"and this would be {count} more" in cause


@pytest.mark.parametrize(
    ("name", "job", "place"),
    [
        ("mem", {"slurm": {"mem-per-cpu": "4G"}}, "--slurm mem-per-cpu"),
        ("mem", {"slurm": {"mem-per-gpu": "4G"}}, "--slurm mem-per-gpu"),
        ("mem", {"mem": "4G"}, "--mem"),
        ("licenses", {"slurm": {"licenses": "matlab:1"}}, "--slurm licenses"),
        ("nice", {"slurm": {"nice": True}}, "--slurm nice"),
        ("mem-per-cpu", {"mem": "4G"}, None),
        ("exclusive", {"exclusive": False, "gpus_per_node": 0}, None),
    ],
)
def test_a_site_means_an_option_by_whatever_way_it_is_given(
    name: str, job: dict[str, Any], place: str | None
) -> None:
    rule = {name: OptionRule(why="so it is", source="guide", instead="do without")}
    refused = findings(Case(job=Job(**job), site=Site(name="x", forbidden=rule)))
    assert [each.place for each in refused] == ([place] if place else [])
    missing = findings(Case(job=Job(**job), site=Site(name="x", required=rule)))
    assert [each.place for each in missing] == ([] if place else [f"--{name}"])


SCRATCH = replace(NEURON, scratch="/scratch/me", driver="535.86", ports=(60000, 65535))


@pytest.mark.parametrize(
    ("seen", "place", "stops"),
    [
        (Host(submit_from="/scratch/me"), "directory", True),
        (Host(writable=False), "directory", True),
        (Host(hidden={"--image": ("/tmp/x.sif", "/tmp")}), "--image", True),
        (Host(unreadable="/home/other/train.py"), "SCRIPT", True),
        (Host(binds=(MissingPath("/data", package="p"),)), "--bind", True),
        (Host(datasets={"imagenet": "/apps/imagenet"}), "datasets", True),
        (Host(architecture="aarch64"), "--image", True),
        (Host(architecture="x86_64"), None, False),
        (Host(image="/i.sif", foreign_manifest=True), "--image", True),
        (Host(unread=(UnreadFile("--image", "/scratch/me/i.sif", 14.5),)), "--image", False),
        (Host(unread=(UnreadFile("--image", "/scratch/me/i.sif", 13.0),)), None, False),
        (Host(unread=(UnreadFile("--image", "/scratch/ToBeDelete_i.sif", 1.0),)), "--image", True),
        (Host(free=50 * 10**6), "directory", True),
        (Host(free=2 * GIGABYTE, quota=GIGABYTE // 2), "directory", False),
        (Host(free=2 * GIGABYTE, quota=2 * GIGABYTE), None, False),
        (Host(home="/home/me", caches={"HF_HOME": "/home/me/hf"}), "HF_HOME", False),
        (Host(home="/home/me", caches={"HF_HOME": "/home/meagre/hf"}), None, False),
    ],
)
def test_what_is_seen_here_is_judged(seen: Host, place: str | None, stops: bool) -> None:
    found = said(case(site=SCRATCH, host=seen))
    assert [one[:2] for one in found] == ([(place, stops)] if place else [])


@pytest.mark.parametrize(("quota", "warns"), [(GIGABYTE, True), (50 * GIGABYTE, False)])
def test_a_home_with_a_small_quota_is_warned_of_where_nothing_moves_the_caches(
    quota: int, warns: bool
) -> None:
    found = said(Case(job=Job(), site=LOCAL, host=Host(home_quota=quota)))
    assert [one[:2] for one in found] == [("cache", False)] * warns


@pytest.mark.parametrize(
    ("change", "arguments", "cause"),
    [
        ({}, "--tensor-parallel-size 4 --pipeline-parallel-size 2", ""),
        ({}, "--tensor-parallel-size 2", ""),
        ({}, "--tensor_model_parallel_size=4 --pipeline-parallel-size 4", "8 ranks (2 nodes x 4) cannot form a mesh of --tensor_model_parallel_size 4 x --pipeline-parallel-size 4"),
        ({}, "--parallelism.tensor_parallel_degree 3", "mesh of --parallelism.tensor_parallel_"),
        ({}, "--tensor-parallel-size 3 --tensor-parallel-size 2", ""),  # argparse takes the last
        ({}, "--tensor-parallel-size 3 --tensor_parallel_size 2", ""),
        ({}, "--tensor-parallel-size", ""),
        ({}, "--tensor-parallel-size 0", ""),
        ({}, "--tensor-parallel-size auto", ""),
        ({}, "--tensor 3 --size tensor-parallel-size", ""),
        ({"launcher": "ray"}, "--tensor-parallel-size 3", ""),  # it starts processes of its own
        ({"ntasks_per_node": 3}, "--context-parallel-size 3", ""),
        ({"nodes": None, "gpus": "4,2"}, "--context-parallel-size 3", ""),
        ({"nodes": None, "gpus": "4,2"}, "--context-parallel-size 4", "6 ranks (one for each GPU)"),
        ({}, "--checkpoint /tmp/gpt", "own /tmp"),
        ({}, "--checkpoint-dir=/dev/shm/gpt", "own /dev/shm"),
        ({"nodes": 1}, "--checkpoint /tmp/gpt", ""),
        ({}, "--checkpoint /tmpfiles/gpt", ""),
        ({}, "--checkpoint gpt --resume /tmp/gpt", ""),
    ],
)  # fmt: skip
def test_a_mesh_divides_the_ranks_which_save_where_all_nodes_see_it(
    change: dict[str, Any], arguments: str, cause: str
) -> None:
    job = {"launcher": "torchrun", "arguments": tuple(arguments.split()), **change}
    found = [each for each in said(case(job)) if "mesh" in each[2] or "checkpoint" in each[2]]
    assert [stops for _, stops, _ in found] == (["checkpoint" not in arguments] if cause else [])
    assert cause in "".join(text for _, _, text in found)


ARM = Host(architecture="aarch64", machine="x86_64")


@pytest.mark.parametrize(
    ("job", "site", "stops", "step"),
    [
        ({}, Site(name="x"), False, "an image for x86_64"),  # guessed
        ({}, LOCAL, True, "an image for x86_64"),
        ({"partition": "gh200_1", "gpus": 1, "nodes": 1}, NEURON, None, ""),
        ({}, NEURON, True, "an image for x86_64"),  # gh200_1 has one GPU on a node
        ({"gpus": 1}, NEURON, True, "an image for x86_64, or one of the partitions gh200_1"),
    ],
)
def test_an_image_of_another_architecture_is_refused_where_that_of_the_nodes_is_known(
    job: dict[str, Any], site: Site, stops: bool | None, step: str
) -> None:
    given = case(job, host=ARM) if site is NEURON else Case(job=Job(), site=site, host=ARM)
    found = [(not each.is_warning, each.advice) for each in findings(given)]
    assert found == ([] if stops is None else [(stops, step)])


def verified(site: str) -> tuple[Verdict, ...]:
    return (Verdict(name="driver", outcome="failed", detail="too old", site=site),)


@pytest.mark.parametrize(
    ("manifest", "driver", "stops"),
    [
        (CUDA, "535.86", None),
        (CUDA, "470.57", True),
        (replace(CUDA, packages=Packages(apt={"cuda-compat-12-4": "550"})), "470.57", False),
        (replace(CUDA, frameworks={}, packages=Packages(apt={"cuda-cudart-12-4": "12.4.127-1"})), "470.57", True),
        (replace(CUDA, frameworks={}, base=BaseImage(reference="nvcr.io/nvidia/pytorch:22.03-py3")), "418.40", True),
        (CUDA, None, None),
        (MANIFEST, "535.86", False),
        (replace(CUDA, verified=verified("neuron")), None, True),
        (replace(CUDA, verified=verified("other")), None, None),
    ],
)  # fmt: skip
def test_the_nodes_driver_and_the_images_cuda(
    manifest: Any, driver: str | None, stops: bool | None
) -> None:
    site, place = replace(NEURON, driver=driver), "--gpus" if manifest is MANIFEST else "--image"
    found = said(case(site=site, manifest=manifest))
    assert [one[:2] for one in found] == ([] if stops is None else [(place, stops)])
    without = said(case({"gpus": 0}, site=site, manifest=manifest))
    assert not without, "without GPUs nothing needs a driver"


@pytest.mark.parametrize(
    ("built", "today", "warns"),
    [("a", "b", True), ("a", "a", False), ("a", "", False), ("", "b", False)],
)
def test_an_image_of_another_lock_is_warned_of(built: str, today: str, warns: bool) -> None:
    given = case({"gpus": 0}, manifest=replace(MANIFEST, locked=built), host=Host(lock=today))
    assert [one[1] for one in said(given)] == [False] * warns


@pytest.mark.parametrize(
    ("job", "ports", "found"),
    [
        ({}, (20000, 20063), []),
        ({}, (20000, 20062), [("ports", True)]),
        ({}, (30000, 20000), [("ports", True)]),
        ({}, (1000, 20000), [("ports", True)]),
        ({}, (20000, 70000), [("ports", True)]),
        ({"env": {"MASTER_PORT": "29500"}}, PORTS, [("--env", False)]),
        ({"env": {"MASTER_PORT": "29500"}}, (29000, 30000), [("--env", False)]),
        ({"env": {"MASTER_PORT": "29500"}}, (20000, 29499), [("--env", True)]),
        ({"env": {"MASTER_PORT": "80"}}, PORTS, [("--env", True)]),
        ({"env": {"MASTER_PORTS": "80"}}, PORTS, []),
    ],
)
def test_ports(job: dict[str, Any], ports: tuple[int, int], found: list[tuple[str, bool]]) -> None:
    assert [one[:2] for one in said(case(job, site=replace(NEURON, ports=ports)))] == found


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
