"""How a run came out, by Slurm's state, its logs and its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.samples import make_case
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.runs import logs
from toolkit.runs.outcome import outcome, results
from toolkit.runs.run import Log

SUMMARY = """\
2| epoch 1  loss 1.9
E1121 00:00:05.000 1 torch/distributed/elastic/multiprocessing/api.py:1000] failed (exitcode: 3) local_rank: 0 (pid: 9)
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_00:00:05
  host      : nid002
  rank      : 2 (local_rank: 0)
  exitcode  : 3 (pid: 9)
  error_file: <N/A>
"""
STOPPED = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_00:00:04
  host      : nid001
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 8)
"""
BATCH_OF_CUT_NODE = """\
srun: error: nid001: task 0: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=2.0
srun: error: Node failure on nid002
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-nid001: error: *** JOB 2 ON nid001 CANCELLED AT 2026-11-22T01:42:16 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
"""


def log_lines(
    host: str, text: str, task: int | None = 0, launcher: str = "torchrun"
) -> list[logs.Line]:
    log = Log(Path(f"7-{task}-{host}.log"), task, host)
    launch = decide(make_case({"launcher": launcher})).launch
    return [logs.line(row, log, launch) for row in text.splitlines()]


def test_lines_know_their_rank():
    agent, rank = log_lines("nid002", "W1121 agent speaks\n3| epoch 1")
    assert (agent.rank, agent.label) == (None, "nid002")
    assert (rank.rank, rank.text, rank.label) == (3, "epoch 1", "3")
    (task,) = log_lines("nid002", "epoch 1", task=5, launcher="srun")
    assert task.label == "5"


@pytest.mark.parametrize("launcher", ["srun", "spawn", "none"])
def test_a_table_that_a_script_prints_is_no_rank(launcher):
    """Only agents that label lines of ranks are believed: ``5| 0.3`` under srun is a row of the script's own table."""
    (row,) = log_lines("nid001", "5| 0.3", task=1, launcher=launcher)
    assert row.text == "5| 0.3"
    assert row.rank == (None if launcher == "spawn" else 1)


def test_the_last_json_object_of_the_lowest_rank_is_the_result():
    lines = log_lines(
        "nid001",
        '0| {"accuracy": 0.1}\n0| {"accuracy": 0.9}\n1| {"accuracy": 0.5}\n{"agent": 1}\n0| {broken}',
    )
    assert results(lines) == {"accuracy": 0.9}


DOWN = {"nid002": "down*: Not responding"}
FIRST = """\
srun: error: nid001: task 1: Exited with exit code 3
srun: launch/slurm: _step_signal: Terminating StepId=7.0
srun: error: nid002: tasks 2-3: Killed
"""
OVER = "slurmstepd-nid001: error: StepId=2.0 exceeded memory limit (1050480640 > 1048576000), being killed"
OVER_JOB = "slurmstepd-nid001: error: Exceeded job memory limit"
LATER = {"down": DOWN, "unhealthy": {}}  # a node that is down later changes no verdict
SURVIVED = f"{BATCH_OF_CUT_NODE}elastic: failed: rank 1 on nid001: exit code 3\n"


def exited(code: int, how: str) -> tuple[str, dict[str, Any], dict[str, str], int, str]:
    text = f"srun: error: nid001: task 1: Exited with exit code {code}"
    return "srun", {"exit_code": code}, {"": text}, code, f"rank 1 on nid001: {how}"


@pytest.mark.parametrize(
    ("launcher", "state", "printed", "code", "message"),
    [
        # The first rank that failed of its own, among those that were stopped.
        ("torchrun", {}, {"nid001": STOPPED, "nid002": SUMMARY}, 3, "rank 2 on nid002: exit code 3"),
        ("torchrun", {}, {"nid002": SUMMARY.replace(": 3 (pid", ": -9 (pid")}, 137, "rank 2 on nid002: killed by signal 9 (SIGKILL)"),
        ("horovod", {}, {"": FIRST}, 3, "rank 1 on nid001: exit code 3"),
        ("horovod", {}, {"": "srun: error: nid002: task 2: Killed"}, 137, "rank 2 on nid002: killed by signal 9 (SIGKILL)"),
        # An exit code is a signal only where that ends processes: 35 is a real-time signal, 23 SIGURG.
        *(exited(code, f"exit code {code}") for code in (255, 163, 128)),
        exited(139, "killed by signal 11 (SIGSEGV)"),
        exited(152, "killed by signal 24 (SIGXCPU)"),
        # Slurm's states.
        ("srun", {"state": "COMPLETED", "exit_code": 0}, {}, 0, ""),
        ("srun", {"state": "TIMEOUT", "signal": 15, **LATER}, {}, 124, "the time limit was reached"),
        ("srun", {"state": "CANCELLED", **LATER}, {}, 130, "the job was cancelled"),
        ("srun", {"state": "CANCELLED", "reason": "DependencyNeverSatisfied"}, {}, 130, "it never started"),
        ("srun", {"state": "OUT_OF_MEMORY", **LATER}, {}, 137, "the job used more memory than it was given; "),
        ("srun", {"exit_code": 5, **LATER}, {}, 5, "the batch script ended with exit code 5"),
        ("srun", {"signal": 11}, {}, 139, "the batch script was ended by signal 11"),
        ("srun", {"exit_code": 0}, {}, 1, "the batch script ended with exit code 0"),
        # Memory, as slurmstepd says it: on a node, or of the whole job by the batch host's.
        ("torchrun", {"exit_code": 137}, {"nid001": OVER}, 137, "the job used more memory on nid001 than"),
        ("torchrun", {"exit_code": 205}, {"": OVER_JOB}, 137, "the job used more memory than it was given; "),
        ("torchrun", {"exit_code": 205}, {"": f"{OVER_JOB} at some point."}, 205, ""),
        # Lost nodes, also one that is back; an elastic job may survive them.
        ("srun", {"state": "NODE_FAIL"}, {}, 87, "a node of nid[001-002] failed"),
        ("srun", {"state": "NODE_FAIL", "down": DOWN, "unhealthy": DOWN}, {}, 87, "node nid002 is down*: Not responding"),
        ("srun", {"state": "NODE_FAIL"}, {"": BATCH_OF_CUT_NODE}, 87, "node nid002 failed while the job ran"),
        ("horovod-elastic", {"exit_code": 3}, {"": SURVIVED}, 3, "rank 1 on nid001: exit code 3"),
        ("horovod-elastic", {"exit_code": 3}, {"": BATCH_OF_CUT_NODE}, 87, "node nid002 failed while the job ran"),
    ],
)  # fmt: skip
def test_every_end_has_an_exit_code_and_says_why(launcher, state, printed, code, message):
    ended: dict[str, Any] = {"state": "FAILED", "exit_code": 1, "nodes": "nid[001-002]", **state}
    down, unhealthy = ended.pop("down", {}), ended.pop("unhealthy", None)
    settings = {"launcher": launcher, "nodes": "1:2" if launcher == "horovod-elastic" else 2}
    lines = [
        line
        for host, text in printed.items()
        for line in log_lines(host, text, 0 if host else None, launcher)
    ]
    came_out = outcome(decide(make_case(settings)), JobState(job_id=7, **ended), lines, down)
    assert (came_out.exit_code, came_out.message.startswith(message)) == (code, True)
    assert came_out.kind == {0: "ok", 87: "lost", 124: "timeout", 130: "cancelled"}.get(
        code, "failed"
    )
    assert unhealthy is None or came_out.unhealthy == unhealthy
