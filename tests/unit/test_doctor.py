"""What the doctor makes of what nodes tell: of GPUs, drivers and clocks that no machine of the tests has."""

from __future__ import annotations

import shutil
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.config import package_directory
from toolkit.doctor import node_jobs
from toolkit.doctor.case import DoctorCase
from toolkit.doctor.items import ITEMS, diagnose
from toolkit.errors import PlanError, ShapeError, UsageError
from toolkit.images.store.contents import Contents
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import ImageCase, ScriptRun
from toolkit.model.image import Python
from toolkit.model.run import Outcome
from toolkit.model.site import Access, Site
from toolkit.slurm.client import Client

PROBE = package_directory("doctor/scripts") / "probe.py"
ITEM = {item.name: item for item in ITEMS}


def case(*reports: Mapping[str, Any], gpus: int = 0, **more: Any) -> DoctorCase:
    """Return a case with these reports of nodes."""
    files: dict[str, Any] = {
        f"report-{index}.json": {"host": f"n{index}", **report}
        for index, report in enumerate(reports)
    }
    given = DoctorCase(nodes=len(reports), gpus=gpus, **more)
    given.probe = ScriptRun(Outcome(state="COMPLETED", exit_code=0, seconds=1.0), files=files)
    return given


def clocks(seconds: float) -> tuple[dict[str, Any], ...]:
    return ({"links": {"n1": {"clock": seconds}}}, {"links": {"n0": {"clock": -seconds}}})


V100S, V100 = {"gpus": ["V100", "V100"]}, {"gpus": ["V100"]}
DRIVER, OTHER = {"driver": "570.86"}, {"driver": "535.129"}
LATE = {"error": "timed out"}
FINE = {
    "names": {name: {"address": "10.0.0.1", "back": f"{name}.cluster"} for name in ("n0", "n1")}
}
OTHER_NAME = {"names": {"n0": {"address": "10.0.0.1", "back": "login"}}}
LOST = {"names": {"n0": {"error": "unknown"}, "n1": {"address": "10.0.0.2"}}}
OWN = {"names": {"n0": {"address": "127.0.1.1", "back": "n0"}}}
OTHER_ADDRESS = {"names": {"n1": {"address": "10.9.0.1", "back": "n1"}}}
UP = {"address": "10.0.0.1"}
IB0 = {"site": Site(name="s", interface="ib0")}
SIMULATED = {"gpus": 2, "has_simulated_gpus": True}
CASES: list[tuple[str, tuple[dict[str, Any], ...], dict[str, Any], str, str]] = [
    ("gpus", (V100S, V100S), {"gpus": 2}, "passed", "4 x V100"),
    ("gpus", (V100S, V100), {"gpus": 2}, "failed", "n1 sees 1"),
    ("gpus", ({}, {}), SIMULATED, "unchecked", "simulated"),
    ("driver", (DRIVER, OTHER), {"gpus": 1}, "warning", "n1 535.129"),
    ("driver", ({}, {}), {"gpus": 1}, "unchecked", "no node has a GPU"),
    ("clocks", clocks(0.002), {}, "passed", "within 2.0 ms"),
    ("clocks", clocks(120.0), {}, "warning", "n1 is +120.000 s from n0"),
    ("image-on-nodes", ({"started": 0.4}, {"started": 12.0}), {}, "warning", "n0 0.4 s, n1 12.0 s"),
    ("names", (FINE, FINE), {}, "passed", "2 nodes find each other"),
    ("names", (FINE, OTHER_NAME), {}, "warning", "n1 calls 10.0.0.1 login, not n0"),
    ("names", (OWN, FINE), {}, "warning", "n0 knows itself by the loopback address 127.0.1.1"),
    ("names", (FINE, FINE, OTHER_ADDRESS), {}, "warning", "n1 is 10.0.0.1 and 10.9.0.1"),
    ("names", (FINE, LOST), {}, "failed", "n1 cannot resolve n0: unknown"),
    ("connections", ({"links": {"n1": LATE}}, {"links": {"n0": {}}}), {}, "failed", "n0 -> n1: timed out"),
    ("interface", (UP, UP), IB0, "passed", "ib0 connects 2 nodes"),
    ("interface", (UP, {}), IB0, "failed", "ib0 has no address on n1"),
    ("interface", ({**UP, "over_interface": {"n1": LATE}}, UP), IB0, "failed", "ib0 carries nothing: n0 -> n1: timed out"),
    ("rendezvous", ({}, {}), {}, "passed", "a port of n0 from 61000 to 65535"),
    ("rendezvous", ({}, {"rendezvous": {"n0": LATE}}), {}, "failed", "n1 -> n0: timed out"),
    ("rendezvous", ({},), {}, "unchecked", "it takes 2 nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reports", "more", "outcome", "says"), CASES)
def test_what_nodes_tell_is_judged(name, reports, more, outcome, says):
    answer = ITEM[name].only(case(*reports, **more))
    assert (answer.outcome, answer.name) == (outcome, name)
    assert says in answer.message


def test_clocks_are_compared_without_the_time_that_a_connection_takes(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["probe.py", "61000", "65535"])
    probe: dict[str, Any] = {}
    exec(PROBE.read_text().removesuffix("main()\n"), probe)
    near, far = socket.socketpair()

    def connect(*_: object) -> socket.socket:
        time.sleep(0.5)
        far.send(struct.pack("!d", time.time()))
        return near

    monkeypatch.setattr(socket, "create_connection", connect)
    with far:
        assert abs(probe["measure_link"]("n1", 1)["clock"]) < 0.1


USABLE = ("idle", "mixed", "allocated", "unknown", "reserved")
OUT = ("drained", "down*", "draining", "idle*", "mixed+drain")


@pytest.mark.parametrize(
    ("states", "outcome", "says"),
    [
        ((*USABLE, *OUT), "warning", "5 of 10 nodes take jobs"),
        (USABLE, "passed", "5 of 5 nodes take jobs"),
        ((*USABLE[1:], *OUT), "failed", "4 of 9 nodes take jobs, 5 needed"),
    ],
)
def test_nodes_that_take_no_jobs(states, outcome, says, monkeypatch):
    nodes = {f"n{number}": (state, "none") for number, state in enumerate(states)}
    partitions = (SimpleNamespace(name="a", default=False), SimpleNamespace(name="b", default=True))
    monkeypatch.setattr(Client, "partitions", lambda _: partitions)
    monkeypatch.setattr(Client, "node_states", lambda _, name: nodes if name == "b" else {})
    answer = ITEM["node-states"].only(DoctorCase(nodes=5, client=Client(Access())))
    assert (answer.outcome, answer.message) == (outcome, says)


def test_what_a_refused_job_lacks_is_told(tmp_path, monkeypatch):
    findings = [
        UsageError("this site requires a comment", place="--comment", next_step="--comment etc"),
        ShapeError("main has 2 nodes", place="--nodes", next_step="--nodes 2"),
    ]

    def refuse(*_: object) -> None:
        raise PlanError("nothing was submitted", findings)

    monkeypatch.setattr(node_jobs, "gather", refuse)
    asked, here = case({}), Site(name="s", submit_directory=str(tmp_path))
    asked.probe = node_jobs.run_script(PROBE, {}, (), here)
    refused = ITEM["allocation"].only(asked)
    assert refused.outcome == "failed"
    reasons = "--comment: this site requires a comment; --comment etc; --nodes: main has 2 nodes"
    assert f"{reasons}; --nodes 2" in refused.message


@pytest.mark.parametrize(("free", "outcome"), [(5e10, "passed"), (1e8, "warning")])
def test_room(free, outcome, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=int(free)))
    assert ITEM["directories"].only(case(directories={"images": Path("/")})).outcome == outcome


@pytest.mark.parametrize(
    ("expected", "outcome"), [(20.0, "warning"), (6.0, "passed"), (None, "passed")]
)
def test_an_allreduce_is_held_against_what_the_site_expects(expected, outcome):
    results: dict[str, object] = {"passed": True, "gigabytes_per_second": 5.0}
    run = ScriptRun(Outcome(state="COMPLETED", exit_code=0, seconds=1.0, results=results))
    stored = StoredImage(name="i", path="/i.sif", manifest=None)
    image = ImageCase(image=stored, nodes=1, gpus=4)
    python = Python(path="python3", version="3.11", modules=("torch",))
    image.contents = Contents(python="3.11", pythons=(python,), cuda="12.4")
    image.run_ranks = lambda *_: run
    site = Site(name="s", allreduce={"nccl": expected} if expected else {})
    answer = ITEM["allreduce-nccl"].only(case({}, site=site, image_case=image))
    assert answer.outcome == outcome
    assert "5.00 GB/s per rank" in answer.message


def test_without_a_cluster_no_node_is_checked():
    results = {result.name: result for result in diagnose(DoctorCase(nodes=2, no_site="none"))}
    assert list(results) == [item.name for item in ITEMS]
    assert results["slurm"].outcome == "failed"
    of_nodes = {item.name for item in ITEMS if item.scope == "nodes"}
    assert len(of_nodes) == 12
    assert {results[name].outcome for name in of_nodes} == {"unchecked"}


@pytest.mark.parametrize(
    ("version", "outcome", "says"),
    [
        ("22.05.8", "passed", "tested with all tests"),
        ("26.11.0-0rc1", "warning", "not tested; tested are 22.05, 23.02, "),
    ],
)
def test_whether_the_version_of_slurm_was_tested(version, outcome, says, monkeypatch):
    monkeypatch.setattr("toolkit.shell.which", lambda _: "/usr/bin/x")
    monkeypatch.setattr(Client, "partitions", lambda _: ())
    monkeypatch.setattr(Client, "version", lambda _: version)
    answer = ITEM["slurm"].only(case(site=Site(name="s"), client=Client(Access())))
    assert answer.outcome == outcome
    assert says in answer.message
