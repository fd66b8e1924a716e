"""Why a job waits, in words, from what Slurm tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.run_fixtures import Slurm
from toolkit.explain.waiting import explain
from toolkit.model.run import Submission
from toolkit.runs.run import Run

# As `scontrol --oneliner show job` of 22.05 answers.
JOB = (
    "JobId=7 JobName=train UserId=me(1000) Priority=100 Nice=0 Account=ml QOS=normal JobState=PENDING Reason={} "
    "Dependency={} TimeLimit=02:00:00 EligibleTime=2026-11-22T08:00:00 "
    "StartTime=Unknown Partition=main NumNodes={} NumCPUs=8 Features=v100\n"
)
RUNNING = "3|ann|nid001|2026-11-22T10:40:00\n5|bob|nid002|2026-11-22T11:40:00\n"
NODES = (
    "nid001|allocated|none\nnid002|allocated|none\nnid003|idle|none\nnid004|drained*|{bad} fan\n"
)


def said(
    reason: str, dependency: str = "(null)", nodes: str = "2-2", **more: str
) -> dict[str, list[str]]:
    """Return what is told of a job, if Slurm 22.05 answers this."""
    run = Run(Path("train-0004"))
    run.job = Submission(job_id=7, site="local", submitted="")
    answers = {"job": JOB.format(reason, dependency, nodes), "sinfo": NODES, "--start": ""}
    answers |= {"reservation": "No reservations in the system\n", **more}
    answers["--states=RUNNING,COMPLETING"] = more.get("running", RUNNING)
    run.client = Slurm(**answers)
    lines: dict[str, list[str]] = {}
    for subject, text in explain(run):
        lines.setdefault(subject, []).append(text)
    return lines


def test_who_holds_the_nodes_is_named_and_until_when():
    assert said("Resources", **{"--start": "2026-11-22T10:40:00"}) == {
        "waits": ["it needs 2 nodes; 1 of the 4 nodes of main is idle"],
        "held by": ["job 3 of ann on nid001, until 2026-11-22T10:40:00 at the latest"],
        "": ["job 5 of bob on nid002, until 2026-11-22T11:40:00 at the latest"],
        "change": [
            "fewer --nodes or GPUs, a shorter --time (it may fit in a gap), "
            "or another --partition: toolkit cluster show"
        ],
        "expected": ["Slurm expects it to start at 2026-11-22T10:40:00"],
    }
    endless = said("Resources", running="6|ann|nid001|N/A\n")
    assert endless["held by"] == ["job 6 of ann on nid001"]
    lines = said("Priority", nodes="1-1", running=RUNNING * 150)
    assert lines[""][-1] == "and 294 more jobs"


@pytest.mark.parametrize(
    ("reason", "why", "change"),
    [
        ("Dependency", "job 12 to end with 0 and job 13 to end", "scontrol update job=7 dep"),
        ("JobHeldUser", "you, or your script, hold it back", "scontrol release 7"),
        ("PartitionNodeLimit", "its 2 nodes are more than partition main", "other --nodes"),
        ("QOSMaxGRESPerUser", "what QOS normal allows (QOSMaxGRESPerUser)", "of yours end"),
        ("AssocGrpCpuLimit", "account ml has reached its limit (AssocGrpC", "ask for less"),
        ("None", "Slurm has not considered it yet", "some seconds"),
        ("FluxCapacitor", "Slurm's reason is FluxCapacitor", "man squeue"),
    ],
)
def test_every_reason_says_why_and_what_would_change_it(reason, why, change):
    lines = said(reason, "afterok:12(unfulfilled),afterany:13(unfulfilled)")
    assert why in lines["waits"][0]
    assert change in lines["change"][0]


def test_nodes_that_are_planned_or_down_are_named_with_braces_as_text():
    fix = "ReservationName=fix StartTime=09:00 EndTime=12:00 Nodes=nid[1-4] Flags=MAINT"
    lines = said("ReqNodeNotAvail,_UnavailableNodes:nid[002-003]", reservation=fix)
    assert lines["waits"] == [
        "nodes that it needs are not available: nid[002-003]; "
        "maintenance fix of nid[1-4] from 09:00 to 12:00; nid004 is drained* ({bad} fan)"
    ]
