"""What the doctor makes of what nodes tell: of GPUs, drivers and clocks that no machine of the tests has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from toolkit.doctor import (
    CHECKS,
    clocks,
    driver,
    findings,
    gpus,
    interface,
    names,
    node_states,
    rendezvous,
    slurm,
    space,
    together,
)
from toolkit.doctor.assemble import Wanted, probe_words
from toolkit.doctor.case import Case
from toolkit.images.store.space import Room
from toolkit.images.store.store import FoundImage
from toolkit.images.verify.case import Answer, Inside, Met
from toolkit.images.verify.case import Case as ImageCase
from toolkit.images.verify.jobs import Ended
from toolkit.model.site import Access, Site
from toolkit.resources import package_directory
from toolkit.slurm.client import Client


def case(*told: dict[str, Any], asked: int = 0, **more: Any) -> Case:
    """Of nodes that told so much."""
    files: dict[str, Any] = {
        f"told-{index}.json": {"host": f"n{index}", **one} for index, one in enumerate(told)
    }
    files["here-0.json"] = {"meeting": 61007}
    return Case(
        here=Path("/w"),
        nodes=len(told),
        gpus=asked,
        probe=lambda: Ended(outcome={}, files=files),
        **more,
    )


def way(clock: float = 0.0) -> dict[str, Any]:
    return {"clock": clock, "from": "10.0.0.1", "to": "10.0.0.2"}


@pytest.mark.parametrize(
    ("told", "outcome", "words"),
    [
        (
            [{"gpus": ["GPU 0: V100", "GPU 1: V100"]}, {"gpus": ["GPU 0: V100", "GPU 1: V100"]}],
            "PASS",
            "4 x V100",
        ),
        (
            [{"gpus": ["GPU 0: V100", "GPU 1: V100"]}, {"gpus": ["GPU 0: V100"]}],
            "FAIL",
            "n1 sees 1",
        ),
        ([{}, {}], "FAIL", "n0 sees 0; n1 sees 0"),
    ],
)
def test_gpus(told: list[dict[str, Any]], outcome: str, words: str) -> None:
    answer = gpus.check(case(*told, asked=2))
    assert answer.outcome == outcome
    assert words in answer.detail


def test_gpus_of_a_local_cluster_are_simulated_and_said_to_be() -> None:
    answer = gpus.check(case({"visible": "0,1"}, {"visible": "0,1"}, asked=2, simulated=True))
    assert answer.outcome == "not checked"
    assert "2, 2" in answer.detail


def test_drivers() -> None:
    assert driver.check(case({"driver": "570.86"}, {"driver": "570.86"}, asked=1)).outcome == "PASS"
    unlike = driver.check(case({"driver": "570.86"}, {"driver": "535.129"}, asked=1))
    assert unlike.outcome == "WARN"
    assert "n1 535.129" in unlike.detail
    assert driver.check(case({"driver": "570.86"}, {}, asked=1)).outcome == "WARN"


@pytest.mark.parametrize(("seconds", "outcome"), [(0.002, "PASS"), (-3.0, "WARN"), (120.0, "FAIL")])
def test_clocks(seconds: float, outcome: str) -> None:
    assert (
        clocks.check(case({"ways": {"n1": way(seconds)}}, {"ways": {"n0": way(-seconds)}})).outcome
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
    assert names.check(case(fine, told("n1", "n0", "10.0.0.1", "n0"))).outcome == "PASS"
    assert names.check(case(fine, told("n1", "n0", "10.0.0.1", "login"))).outcome == "WARN"
    broken = names.check(
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
    assert broken.outcome == "FAIL"
    assert "n1 cannot resolve n0" in broken.detail


def test_interface_and_rendezvous() -> None:
    site = Site(name="s", interface="ib0")
    up = {"addresses": {"ib0": "10.0.0.1"}}
    assert interface.check(
        case(
            {**up, "carries": {"n1": {"speed": 900.0}}},
            {**up, "carries": {"n0": {"speed": 800.0}}},
            site=site,
        )
    ) == ("PASS", "ib0 carries 800 to 900 MB/s between nodes, by one connection", "")
    assert (
        interface.check(case(up, {"addresses": {"eth0": "10.0.0.2"}}, site=site)).outcome == "FAIL"
    )
    assert (
        interface.check(
            case({**up, "carries": {"n1": {"error": "timed out"}}}, up, site=site)
        ).outcome
        == "FAIL"
    )
    assert rendezvous.check(case({}, {})).detail == "n0:61007 is reached from n1"
    assert rendezvous.check(case({}, {"meeting": {"error": "timed out"}})).outcome == "FAIL"


def test_nodes_that_take_no_jobs() -> None:
    states = {
        "n1": ("idle", "none"),
        "n2": ("drained", "fan"),
        "n3": ("down*", "Not responding"),
        "n4": ("mixed", "none"),
    }
    found = node_states.judge(states, 2, "main")
    assert found.outcome == "WARN"
    assert "n2 drained: fan; n3 down*: Not responding" in found.detail
    assert node_states.judge(states, 3, "main").outcome == "FAIL"
    assert node_states.judge({"n1": ("idle", "none")}, 1, "main").outcome == "PASS"
    assert [
        state
        for state in ("draining", "idle*", "allocated", "unknown", "mixed+drain", "reserved")
        if node_states.usable(state)
    ] == "allocated unknown reserved".split()


def test_room() -> None:
    def room(free: float, quota: float | None = None) -> Room:
        return Room(directory="/x", free=int(free), quota=None if quota is None else int(quota))

    assert space.judge({"images": room(5e10), "runs": room(5e10)}).outcome == "PASS"
    assert space.judge({"images": room(5e10, 1e9), "runs": room(5e10)}).outcome == "WARN"
    assert space.judge({"images": room(5e10), "runs": room(0)}).outcome == "FAIL"


def test_an_allreduce_is_held_against_what_the_site_expects() -> None:
    met = {"nccl": Met(outcome="passed", detail="", speed=5.0)}
    verified = ImageCase(image=None, inside=Inside("apptainer", "/i.sif"), met=met)  # type: ignore[arg-type]
    for expected, outcome in ((20.0, "WARN"), (6.0, "PASS"), (None, "PASS")):
        site = Site(name="s", allreduce={"nccl": expected} if expected else {})
        assert (
            together.judged(
                case(site=site, verified=verified), Answer("passed", "4 ranks"), "nccl"
            ).outcome
            == outcome
        )


def test_every_item_has_a_module_and_without_a_cluster_nodes_are_not_checked() -> None:
    found = {
        one.name: one for one in findings(Case(here=Path("/"), nodes=2, no_site="none is here"))
    }
    assert list(found) == list(CHECKS)
    assert found["slurm"].outcome == "FAIL"
    assert {one.outcome for name, one in found.items() if CHECKS[name].of_nodes} == {"not checked"}


@pytest.mark.parametrize(
    ("version", "outcome", "words"),
    [
        ("22.05.8", "PASS", "tested with all tests"),
        ("24.11.5", "PASS", "tested with all tests"),
        ("23.11.10-1", "PASS", "tested: the commands for jobs"),
        ("26.11.0-0rc1", "WARN", "not tested; tested are 22.05, 23.02, "),
        ("unknown", "WARN", "not tested"),
    ],
)
def test_whether_the_version_of_slurm_was_tested(
    version: str, outcome: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.shell.which", lambda _: "/usr/bin/x")
    client = Client(Access())
    monkeypatch.setattr(Client, "partitions", lambda _: ())
    monkeypatch.setattr(Client, "version", lambda _: version)
    answer = slurm.check(case(site=Site(name="s"), client=client))
    assert answer.outcome == outcome
    assert words in answer.detail


def test_the_probe_is_python_that_old_images_have() -> None:
    ast.parse(
        (package_directory("doctor/scripts") / "probe.py").read_text(), feature_version=(3, 7)
    )


def test_what_would_be_run_on_nodes_can_be_seen_before() -> None:
    image = FoundImage(path="/i/x.sif", name="x", manifest=None)
    words = probe_words(Wanted("neuron", "x", 2, 4, "amd", ("--time", "5")), image)
    line = " ".join(words)
    assert "--image /i/x.sif --site neuron" in line
    assert "--nodes 2 --ntasks-per-node 1 --gpus 4 --partition amd --time 5" in line
