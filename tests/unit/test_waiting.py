"""Why a job waits, in words, from what Slurm tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from toolkit.explain.gather import of_waiting
from toolkit.explain.waiting import Facts, Holder, explain
from toolkit.model.run import Submission
from toolkit.runs.run import Run
from toolkit.shell import Result
from toolkit.slurm import cluster

# As `scontrol --oneliner show job` of 22.05 answers.
JOB = (
    "JobId=7 JobName=train UserId=me(1000) Priority=100 Nice=0 Account=ml QOS=normal JobState=PENDING Reason={reason} "
    "Dependency={dependency} TimeLimit=02:00:00 EligibleTime=2026-11-22T08:00:00 "
    "StartTime=Unknown Partition=main NumNodes={nodes} NumCPUs=8 Features=v100"
)
BUSY = {
    "nid001": ("allocated", "none"),
    "nid002": ("allocated", "none"),
    "nid003": ("idle", "none"),
    "nid004": ("drained*", "bad fan"),
}


def job(reason: str, dependency: str = "(null)", nodes: str = "2") -> dict[str, str]:
    return cluster.fields_of(JOB.format(reason=reason, dependency=dependency, nodes=nodes))


def said(facts: Facts) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for line in explain(facts, "train-0004"):
        lines.setdefault(line.subject, []).append(line.text)
    return lines


def test_who_holds_the_nodes_is_named_and_until_when() -> None:
    holders = [
        Holder("3", "ann", "nid001", "2026-11-22T10:40:00"),
        Holder("5", "bob", "nid002", "N/A"),
    ]
    assert said(Facts(job("Resources"), holders, 2, BUSY, start="2026-11-22T10:40:00")) == {
        "waits": ["it needs 2 nodes; 1 of the 4 nodes of main is idle, 1 is down or drained"],
        "before it": ["2 waiting jobs with a higher priority"],
        "held by": ["job 3 of ann on nid001, until 2026-11-22T10:40:00 at the latest"],
        "": ["job 5 of bob on nid002"],
        "change": [
            "fewer --nodes or GPUs, a shorter --time (it may fit in a gap), "
            "or another --partition: toolkit cluster show"
        ],
        "expected": ["Slurm expects it to start at 2026-11-22T10:40:00"],
    }
    many = [Holder(str(number), "ann", "n1", "") for number in range(300)]
    assert said(Facts(job("Resources"), many))[""][-1] == "and 294 more jobs"


@pytest.mark.parametrize(
    ("reason", "why", "change"),
    [
        ("Dependency", "job 12 to end with 0 and job 13 to end", "scontrol update job=7 dep"),
        ("DependencyNeverSatisfied", "as it had to: afterok:12(u", "toolkit cancel train-0004"),
        ("JobHeldUser", "you, or your script, hold it back", "scontrol release 7"),
        ("JobHeldAdmin", "an administrator holds it back", "ask the administrator"),
        ("BeginTime", "not to start before 2026-11-22T08:00:00", "without --begin"),
        ("PartitionTimeLimit", "02:00:00 is longer than partition main", "a shorter --time"),
        ("PartitionNodeLimit", "its 2 nodes are more than partition main", "other --nodes"),
        ("QOSMaxGRESPerUser", "what QOS normal allows (QOSMaxGRESPerUser)", "of yours end"),
        ("QOSMaxJobsPerUserLimit", "QOS normal allows you no more jobs", "one of yours ends"),
        ("QOSGrpGRES", "all jobs of QOS normal together", "when some of them end"),
        ("AssocGrpCpuLimit", "account ml has reached its limit (AssocGrpC", "ask for less"),
        ("AssocMaxJobsLimit", "account ml allows you no more jobs", "when one of yours ends"),
        ("Licenses", "all licenses", "given back"),
        ("None", "Slurm has not considered it yet", "some seconds"),
        ("FluxCapacitor", "Slurm's reason is FluxCapacitor", "man squeue"),
    ],
)
def test_every_reason_says_why_and_what_would_change_it(reason: str, why: str, change: str) -> None:
    lines = said(Facts(job(reason, "afterok:12(unfulfilled),afterany:13(unfulfilled)")))
    assert why in lines["waits"][0]
    assert change in lines["change"][0]


def test_nodes_that_are_planned_or_down_are_named_with_braces_as_text() -> None:
    planned = {"StartTime": "09:00", "EndTime": "12:00", "Nodes": "nid[1-4]", "Flags": "MAINT"}
    nodes = {"nid003": ("idle", "none"), "nid004": ("drained*", "{bad} fan")}
    reason = "ReqNodeNotAvail,_UnavailableNodes:nid[002-003]"
    assert said(Facts(job(reason), nodes=nodes, reservations={"fix": planned}))["waits"] == [
        "nodes that it needs are not available: nid[002-003]; "
        "maintenance fix of nid[1-4] from 09:00 to 12:00; nid004 is drained* ({bad} fan)"
    ]


class Answers:
    """A client that answers as Slurm 22.05 does."""

    def ask(self, *argv: str) -> Result:
        if argv[0] == "scontrol":
            text = (
                JOB.format(reason="Priority", dependency="(null)", nodes="1-1")
                if "job" in argv
                else "No reservations in the system\n"
            )
        else:
            text = (
                "3|ann|nid001|2026-11-22T10:40:00\n"
                if "--states=RUNNING,COMPLETING" in argv
                else "7|100\n8|300\n9|50\n"
            )
        return Result(argv, 0, text, "")

    def node_states(self, partition: str | None = None) -> dict[str, tuple[str, str]]:
        assert partition == "main"
        return BUSY

    def expected_start(self, job_id: int) -> str:
        assert job_id == 7
        return ""


def waiting_run(cluster: str | None) -> Run:
    run = Run(Path("x-0001"))
    run.job = Submission(job_id=7, site="local", submitted="", cluster=cluster)
    run.client = cast(Any, Answers())
    return run


@pytest.mark.parametrize(
    ("cluster", "before"),
    [
        (None, ""),
        ("local", "toolkit cluster exec -- "),
        ("two", "toolkit cluster exec --cluster two -- "),
    ],
)
def test_a_command_of_slurm_can_be_pasted_on_a_local_cluster(
    monkeypatch: pytest.MonkeyPatch, cluster: str | None, before: str
) -> None:
    monkeypatch.delenv("TOOLKIT_CLUSTER", raising=False)
    facts = of_waiting(waiting_run(cluster))
    held = said(facts._replace(job=job("JobHeldUser")))
    assert held["change"] == [f"{before}scontrol release 7 lets it go"]


def test_what_slurm_tells_is_gathered() -> None:
    facts = of_waiting(waiting_run(None))
    assert (facts.holders, facts.ahead) == (
        [Holder("3", "ann", "nid001", "2026-11-22T10:40:00")],
        1,
    )
    assert said(facts)["waits"] == [
        "it needs 1 node; 1 of the 4 nodes of main is idle, 1 is down or drained"
    ]
