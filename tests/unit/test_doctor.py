"""What the doctor makes of what nodes tell: of GPUs, drivers and clocks that no machine of the tests has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from toolkit.checks import Result, passed
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
from toolkit.images.verify.case import ImageCase, RankSum, ScriptRun
from toolkit.images.verify.runner import ImageRunner
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


@pytest.mark.parametrize(
    ("told", "outcome", "words"),
    [
        (
            [{"gpus": ["GPU 0: V100", "GPU 1: V100"]}, {"gpus": ["GPU 0: V100", "GPU 1: V100"]}],
            "passed",
            "4 x V100",
        ),
        (
            [{"gpus": ["GPU 0: V100", "GPU 1: V100"]}, {"gpus": ["GPU 0: V100"]}],
            "failed",
            "n1 sees 1",
        ),
        ([{}, {}], "failed", "n0 sees 0; n1 sees 0"),
    ],
)
def test_gpus(told: list[dict[str, Any]], outcome: str, words: str) -> None:
    answer = gpus.check_gpus.only(case(*told, asked=2))
    assert answer.outcome == outcome
    assert words in answer.message


def test_gpus_of_a_local_cluster_are_simulated_and_said_to_be() -> None:
    answer = gpus.check_gpus.only(
        case({"visible": "0,1"}, {"visible": "0,1"}, asked=2, has_simulated_gpus=True)
    )
    assert answer.outcome == "unchecked"
    assert "2, 2" in answer.message


def test_drivers() -> None:
    assert (
        gpus.check_driver.only(case({"driver": "570.86"}, {"driver": "570.86"}, asked=1)).outcome
        == "passed"
    )
    unlike = gpus.check_driver.only(case({"driver": "570.86"}, {"driver": "535.129"}, asked=1))
    assert unlike.outcome == "warning"
    assert "n1 535.129" in unlike.message
    assert gpus.check_driver.only(case({"driver": "570.86"}, {}, asked=1)).outcome == "warning"


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(0.002, "passed"), (-3.0, "warning"), (120.0, "failed")]
)
def test_clocks(seconds: float, outcome: str) -> None:
    assert (
        network.check_clocks.only(
            case({"links": {"n1": way(seconds)}}, {"links": {"n0": way(-seconds)}})
        ).outcome
        == outcome
    )


def test_names() -> None:
    def told(here: str, there: str, address: str, back: str) -> dict[str, Any]:
        return {
            "names": {
                here: {"address": "10.0.0.9", "back": here},
                there: {"address": address, "back": back},
            }
        }

    fine = told("n0", "n1", "10.0.0.2", "n1.cluster")
    assert (
        network.check_names.only(case(fine, told("n1", "n0", "10.0.0.1", "n0"))).outcome == "passed"
    )
    assert (
        network.check_names.only(case(fine, told("n1", "n0", "10.0.0.1", "login"))).outcome
        == "warning"
    )
    broken = network.check_names.only(
        case(
            fine,
            {
                "names": {
                    "n0": {"error": "Name or service not known"},
                    "n1": {"address": "10.0.0.2"},
                }
            },
        )
    )
    assert broken.outcome == "failed"
    assert "n1 cannot resolve n0" in broken.message


def test_interface_and_rendezvous() -> None:
    site = Site(name="s", interface="ib0")
    up = {"addresses": {"ib0": "10.0.0.1"}}
    fast = {**up, "throughput": {"n1": {"speed": 900.0}}}
    slow = {**up, "throughput": {"n0": {"speed": 800.0}}}
    carried = network.check_interface.only(case(fast, slow, site=site))
    assert carried == Result(
        "passed",
        "ib0 carries 800 to 900 MB/s between nodes, by one connection",
        name="interface",
    )
    assert (
        network.check_interface.only(
            case(up, {"addresses": {"eth0": "10.0.0.2"}}, site=site)
        ).outcome
        == "failed"
    )
    assert (
        network.check_interface.only(
            case({**up, "throughput": {"n1": {"error": "timed out"}}}, up, site=site)
        ).outcome
        == "failed"
    )
    assert network.check_rendezvous.only(case({}, {})).message == "n0:61007 is reached from n1"
    assert (
        network.check_rendezvous.only(case({}, {"rendezvous": {"error": "timed out"}})).outcome
        == "failed"
    )


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
    sums = {"nccl": RankSum(outcome="passed", detail="", speed=5.0)}
    runner = ImageRunner("/i.sif")
    image_case = ImageCase(image=None, runner=runner, sums=sums)  # type: ignore[arg-type]
    for expected, outcome in ((20.0, "warning"), (6.0, "passed"), (None, "passed")):
        site = Site(name="s", allreduce={"nccl": expected} if expected else {})
        assert (
            allreduce.judge_speed(
                case(site=site, image_case=image_case), passed("4 ranks"), "nccl"
            ).outcome
            == outcome
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
