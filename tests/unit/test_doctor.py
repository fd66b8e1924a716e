"""What the doctor makes of what nodes tell: of GPUs, drivers and clocks that no machine of the tests has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from toolkit.checks import Check, passed
from toolkit.config import package_directory
from toolkit.doctor import node_jobs
from toolkit.doctor.case import DoctorCase
from toolkit.doctor.items import (
    ITEMS,
    allreduce,
    cluster,
    diagnose,
    gpus,
    image,
    machine,
    network,
)
from toolkit.errors import PlanError, ShapeError, UsageError
from toolkit.images.host.space import Room
from toolkit.images.verify.case import ImageCase, ScriptRun
from toolkit.images.verify.own_checks import ImageRunner
from toolkit.model.run import Outcome
from toolkit.model.site import Access, Site
from toolkit.slurm.client import Client


def case(*reports: dict[str, Any], asked: int = 0, **more: Any) -> DoctorCase:
    """Return a case with these reports of nodes."""
    files: dict[str, Any] = {
        f"report-{index}.json": {"host": f"n{index}", **report}
        for index, report in enumerate(reports)
    }
    files["presence-0.json"] = {"rendezvous": 61007}
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0)
    return DoctorCase(
        cwd=Path("/w"),
        nodes=len(reports),
        gpus=asked,
        run_probe=lambda: ScriptRun(outcome=outcome, files=files),
        **more,
    )


def way(clock: float = 0.0) -> dict[str, Any]:
    return {"clock": clock, "from": "10.0.0.1", "to": "10.0.0.2"}


def names(here: str, there: str, address: str, back: str) -> dict[str, Any]:
    own = {"address": "10.0.0.9", "back": here}
    return {"names": {here: own, there: {"address": address, "back": back}}}


V100S = {"gpus": ["GPU 0: V100", "GPU 1: V100"]}
DRIVER, OTHER = {"driver": "570.86"}, {"driver": "535.129"}
FINE = names("n0", "n1", "10.0.0.2", "n1.cluster")
UP = {"addresses": {"ib0": "10.0.0.1"}}
LATE = {"error": "timed out"}
IB0 = Site(name="s", interface="ib0")
CASES: list[tuple[Check, list[dict[str, Any]], dict[str, Any], str, str]] = [
    (gpus.check_gpus, [V100S, V100S], {"asked": 2}, "passed", "4 x V100"),
    (gpus.check_gpus, [V100S, {"gpus": ["GPU 0: V100"]}], {"asked": 2}, "failed", "n1 sees 1"),
    (gpus.check_gpus, [{}, {}], {"asked": 2}, "failed", "n0 sees 0; n1 sees 0"),
    (
        gpus.check_gpus,
        [{"visible": "0,1"}, {"visible": "0,1"}],
        {"asked": 2, "has_simulated_gpus": True},
        "unchecked",
        "2, 2",
    ),
    (gpus.check_driver, [DRIVER, DRIVER], {"asked": 1}, "passed", ""),
    (gpus.check_driver, [DRIVER, OTHER], {"asked": 1}, "warning", "n1 535.129"),
    (gpus.check_driver, [DRIVER, {}], {"asked": 1}, "warning", ""),
    *(
        (
            network.check_clocks,
            [{"links": {"n1": way(seconds)}}, {"links": {"n0": way(-seconds)}}],
            {},
            outcome,
            "",
        )
        for seconds, outcome in ((0.002, "passed"), (-3.0, "warning"), (120.0, "failed"))
    ),
    (network.check_names, [FINE, names("n1", "n0", "10.0.0.1", "n0")], {}, "passed", ""),
    (network.check_names, [FINE, names("n1", "n0", "10.0.0.1", "login")], {}, "warning", ""),
    (
        network.check_names,
        [FINE, {"names": {"n0": {"error": "unknown"}, "n1": {"address": "10.0.0.2"}}}],
        {},
        "failed",
        "n1 cannot resolve n0",
    ),
    (
        network.check_interface,
        [
            {**UP, "throughput": {"n1": {"speed": 900.0}}},
            {**UP, "throughput": {"n0": {"speed": 800.0}}},
        ],
        {"site": IB0},
        "passed",
        "ib0 carries 800 to 900 MB/s between nodes, by one connection",
    ),
    (
        network.check_interface,
        [UP, {"addresses": {"eth0": "10.0.0.2"}}],
        {"site": IB0},
        "failed",
        "is not on every node: n1 has eth0",
    ),
    (
        network.check_interface,
        [{**UP, "throughput": {"n1": LATE}}, UP],
        {"site": IB0},
        "failed",
        "ib0 carries nothing: n0 -> n1: timed out",
    ),
    (network.check_rendezvous, [{}, {}], {}, "passed", "n0:61007 is reached from n1"),
    (network.check_rendezvous, [{}, {"rendezvous": LATE}], {}, "failed", "n1: timed out"),
    (network.check_rendezvous, [{}], {}, "unchecked", "it takes 2 nodes"),
]


@pytest.mark.parametrize(("item", "told", "more", "outcome", "words"), CASES)
def test_what_nodes_tell_is_judged(
    item: Check, told: list[dict[str, Any]], more: dict[str, Any], outcome: str, words: str
) -> None:
    answer = item.only(case(*told, **more))
    assert (answer.outcome, answer.name) == (outcome, item.name)
    assert words in answer.message


def test_nodes_that_take_no_jobs() -> None:
    states = {
        "n1": ("idle", "none"),
        "n2": ("drained", "fan"),
        "n3": ("down*", "Not responding"),
        "n4": ("mixed", "none"),
    }
    found = cluster.judge_states(states, 2, "main")
    assert found.outcome == "warning"
    assert "n2 drained: fan; n3 down*: Not responding" in found.message
    assert cluster.judge_states(states, 3, "main").outcome == "failed"
    assert cluster.judge_states({"n1": ("idle", "none")}, 1, "main").outcome == "passed"
    few = cluster.judge_states({"n1": ("idle", "none"), "n4": ("mixed", "none")}, 3, "main")
    assert few.message == "2 of 2 nodes of main take jobs, 3 are needed"
    assert few.fix == "--nodes 2"
    assert [
        state
        for state in ("draining", "idle*", "allocated", "unknown", "mixed+drain", "reserved")
        if cluster.is_usable(state)
    ] == [
        "allocated",
        "unknown",
        "reserved",
    ]


def test_what_a_refused_job_lacks_is_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [
        UsageError("this site requires a comment", place="--comment", next_step="--comment etc"),
        ShapeError("main has 2 nodes", place="--nodes", next_step="--nodes 2"),
    ]

    def refuse(*_: object) -> None:
        raise PlanError("nothing was submitted", findings)

    monkeypatch.setattr(node_jobs, "gather", refuse)
    script = tmp_path / "x.py"
    script.touch()
    ran = node_jobs.run_script(script, {}, (), within=tmp_path)
    asked = case({})
    asked.run_probe = lambda: ran
    refused = image.check_allocation.only(asked)
    assert refused.outcome == "failed"
    assert "--comment: this site requires a comment; --nodes: main has 2 nodes" in refused.message
    assert refused.fix == "--comment etc, --nodes 2"


def test_room() -> None:
    def room(free: float, quota: float | None = None) -> Room:
        return Room(directory="/x", free=int(free), quota=None if quota is None else int(quota))

    assert machine.judge_space({"images": room(5e10), "runs": room(5e10)}).outcome == "passed"
    assert machine.judge_space({"images": room(5e10, 1e9), "runs": room(5e10)}).outcome == "warning"
    assert machine.judge_space({"images": room(5e10), "runs": room(0)}).outcome == "failed"


def test_an_allreduce_is_held_against_what_the_site_expects() -> None:
    results: dict[str, object] = {"gigabytes_per_second": 5.0}
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, results=results)
    runner, runs = ImageRunner("/i.sif"), {"nccl": ScriptRun(outcome)}
    image_case = ImageCase(image=None, runner=runner, runs=runs)  # type: ignore[arg-type]
    for expected, result in ((20.0, "warning"), (6.0, "passed"), (None, "passed")):
        site = Site(name="s", allreduce={"nccl": expected} if expected else {})
        assert (
            allreduce.judge_speed(
                case(site=site, image_case=image_case), passed("4 ranks"), "nccl"
            ).outcome
            == result
        )


def test_without_a_cluster_no_node_is_checked() -> None:
    case = DoctorCase(cwd=Path("/"), nodes=2, no_site="none is here")
    results = {result.name: result for result in diagnose(case)}
    assert list(results) == [item.name for item in ITEMS]
    assert results["slurm"].outcome == "failed"
    of_nodes = {item.name for item in ITEMS if item.scope == "nodes"}
    assert len(of_nodes) == 12
    assert {results[name].outcome for name in of_nodes} == {"unchecked"}


@pytest.mark.parametrize(
    ("version", "outcome", "words"),
    [
        ("22.05.8", "passed", "tested with all tests"),
        ("24.11.5", "passed", "tested with all tests"),
        ("23.11.10-1", "passed", "tested: the commands for jobs"),
        ("26.11.0-0rc1", "warning", "not tested; tested are 22.05, 23.02, "),
        ("unknown", "warning", "not tested"),
    ],
)
def test_whether_the_version_of_slurm_was_tested(
    version: str, outcome: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.shell.which", lambda _: "/usr/bin/x")
    client = Client(Access())
    monkeypatch.setattr(Client, "partitions", lambda _: ())
    monkeypatch.setattr(Client, "version", lambda _: version)
    answer = cluster.check_slurm.only(case(site=Site(name="s"), client=client))
    assert answer.outcome == outcome
    assert words in answer.message


def test_the_probe_is_python_that_old_images_have() -> None:
    ast.parse(
        (package_directory("doctor/scripts") / "probe.py").read_text(), feature_version=(3, 7)
    )
