"""How a run came out, by Slurm's state, its logs and its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.samples import first, make_case
from toolkit.errors import JobLostError
from toolkit.explain.explanation import explain
from toolkit.explain.gather import rules
from toolkit.explain.model import Evidence
from toolkit.launchers import get
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.runs import logs
from toolkit.runs.outcome import outcome, results
from toolkit.runs.run import Log
from toolkit.slurm import parse

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
DECIDED = decide(make_case())


def log_lines(
    host: str, text: str, task: int | None = 0, launcher: str = "torchrun"
) -> list[logs.Line]:
    log = Log(Path(f"7-{task}-{host}.log"), 7, task, host)
    launch = decide(make_case({"launcher": launcher})).launch
    return [logs.line(row, log, launch) for row in text.splitlines()]


def test_lines_know_their_rank() -> None:
    agent, rank = log_lines("nid002", "W1121 agent speaks\n3| epoch 1")
    assert (agent.rank, agent.label) == (None, "nid002")
    assert (rank.rank, rank.text, rank.label) == (3, "epoch 1", "3")
    (task,) = log_lines("nid002", "epoch 1", task=5, launcher="srun")
    assert task.label == "5"


@pytest.mark.parametrize("launcher", ["srun", "spawn", "none"])
def test_a_table_that_a_script_prints_is_no_rank(launcher: str) -> None:
    """Only agents that label lines of ranks are believed: ``5| 0.3`` under srun is a row of the script's own table."""
    (row,) = log_lines("nid001", "5| 0.3", task=1, launcher=launcher)
    assert row.text == "5| 0.3"
    assert row.rank == (None if launcher == "spawn" else 1)


def test_the_last_json_object_of_the_lowest_rank_is_the_result() -> None:
    lines = log_lines(
        "nid001",
        '0| {"accuracy": 0.1}\n0| {"accuracy": 0.9}\n1| {"accuracy": 0.5}\n{"agent": 1}\n0| {broken}',
    )
    assert results(lines) == {"accuracy": 0.9}


def test_the_first_rank_that_failed_of_its_own_is_found_among_those_that_were_stopped() -> None:
    lines = [*log_lines("nid001", STOPPED), *log_lines("nid002", SUMMARY)]
    came_out = outcome(
        DECIDED, JobState(job_id=7, state="FAILED", nodes="nid[001-002]", exit_code=1), lines, {}
    )
    assert came_out.exit_code == 3
    assert came_out.failure is not None
    assert (came_out.failure.rank, came_out.failure.host) == (2, "nid002")
    assert "rank 2 on nid002: exit code 3" in came_out.message


def test_a_killed_rank_is_128_and_its_signal() -> None:
    failure = first(
        get("torchrun").failures(
            [("nid002", SUMMARY.replace(": 3 (pid", ": -9 (pid").splitlines())]
        )
    )
    assert failure is not None
    assert failure.exit_code == 137
    assert "signal 9" in failure.text


@pytest.mark.parametrize(
    ("code", "how", "cause"),
    [
        (255, "exit code 255", "ended with exit code 255"),
        (200, "exit code 200", "ended with exit code 200"),
        (163, "exit code 163", "ended with exit code 163"),  # 35, a real-time signal
        (151, "exit code 151", "ended with exit code 151"),  # 23, SIGURG, which ends nothing
        (128, "exit code 128", "ended with exit code 128"),
        (139, "killed by signal 11 (SIGSEGV)", "was killed by signal 11"),
        (152, "killed by signal 24 (SIGXCPU)", "was killed by signal 24"),
    ],
)
def test_an_exit_code_is_a_signal_only_where_one_ends_processes(
    code: int, how: str, cause: str
) -> None:
    line = f"srun: error: nid001: task 1: Exited with exit code {code}"
    lines = log_lines("", line, task=None, launcher="srun")
    state = JobState(job_id=7, state="FAILED", nodes="nid001", exit_code=code)
    came_out = outcome(decide(make_case({"launcher": "srun"})), state, lines, {})
    assert came_out.exit_code == code
    assert came_out.failure is not None
    assert came_out.failure.text == f"rank 1 on nid001: {how}"
    failure = replace(came_out.failure, certainty="likely")
    told = explain(Evidence((), "FAILED", code, "srun", failure=failure), rules()).match
    assert told is not None
    assert f"rank 1 on nid001 {cause}, without an error of Python" in told.cause


def test_srun_tells_which_rank_failed_first() -> None:
    batch = (
        "srun: error: nid001: task 1: Exited with exit code 3\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=7.0\n"
        "srun: error: nid002: tasks 2-3: Killed\n"
    )
    failure = first(get("horovod").failures([("", batch.splitlines())]))
    assert failure is not None
    assert (failure.exit_code, failure.rank, failure.host) == (3, 1, "nid001")
    killed = first(get("horovod").failures([("", ["srun: error: nid002: task 2: Killed"])]))
    assert killed is not None
    assert killed.exit_code == 137


@pytest.mark.parametrize(
    ("state", "code", "kind"),
    [
        (JobState(job_id=7, state="COMPLETED"), 0, "ok"),
        (JobState(job_id=7, state="TIMEOUT", signal=15), 124, "timeout"),
        (JobState(job_id=7, state="CANCELLED"), 130, "cancelled"),
        (JobState(job_id=7, state="OUT_OF_MEMORY"), 137, "failed"),
        (JobState(job_id=7, state="NODE_FAIL", nodes="nid001"), JobLostError.exit_code, "lost"),
        (JobState(job_id=7, state="FAILED", exit_code=5), 5, "failed"),
        (JobState(job_id=7, state="FAILED", signal=11), 139, "failed"),
    ],
)
def test_every_end_has_an_exit_code(state: JobState, code: int, kind: str) -> None:
    came_out = outcome(DECIDED, state, [], {})
    assert (came_out.exit_code, came_out.kind) == (code, kind)
    assert came_out.message or kind == "ok"


def test_a_job_over_its_memory_says_so_and_where() -> None:
    lines = log_lines(
        "nid001",
        "slurmstepd-nid001: error: StepId=2.0 exceeded memory limit (1050480640 > 1048576000), being killed",
    )
    came_out = outcome(
        DECIDED, JobState(job_id=7, state="FAILED", exit_code=137, nodes="nid001"), lines, {}
    )
    assert came_out.exit_code == 137
    assert "more memory on nid001" in came_out.message


def test_a_job_that_slurmd_ended_for_its_memory_names_no_node() -> None:
    """The batch host's slurmstepd says it, whichever node had too much; at some point in the past is no reason to fail."""
    state = JobState(job_id=7, state="FAILED", exit_code=205, nodes="nid[001-002]")
    lines = log_lines("", "slurmstepd-nid001: error: Exceeded job memory limit", task=None)
    came_out = outcome(DECIDED, state, lines, {})
    assert (came_out.exit_code, came_out.message.partition(";")[0]) == (
        137,
        "the job used more memory than it was given",
    )
    earlier = log_lines(
        "", "slurmstepd-nid001: error: Exceeded job memory limit at some point.", task=None
    )
    assert outcome(DECIDED, state, earlier, {}).exit_code == 205


def test_a_lost_node_is_named() -> None:
    state = JobState(job_id=7, state="NODE_FAIL", nodes="nid[001-002]")
    came_out = outcome(DECIDED, state, [], {"nid002": "down*: Not responding"})
    assert came_out.message == "node nid002 is down*: Not responding"
    assert came_out.unhealthy == {"nid002": "down*: Not responding"}


BATCH_OF_CUT_NODE = """\
srun: error: nid001: task 0: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=2.0
srun: error: Node failure on nid002
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-nid001: error: *** JOB 2 ON nid001 CANCELLED AT 2026-11-22T01:42:16 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
"""


def test_a_lost_node_that_is_back_is_named_by_the_log() -> None:
    state = JobState(job_id=7, state="NODE_FAIL", nodes="nid[001-002]")
    came_out = outcome(DECIDED, state, log_lines("", BATCH_OF_CUT_NODE, task=None), {})
    assert (came_out.exit_code, came_out.message) == (87, "node nid002 failed while the job ran")


@pytest.mark.parametrize(
    ("state", "code", "kind"),
    [
        (JobState(job_id=7, state="FAILED", exit_code=3), 3, "failed"),
        (JobState(job_id=7, state="CANCELLED"), 130, "cancelled"),
        (JobState(job_id=7, state="OUT_OF_MEMORY"), 137, "failed"),
        (JobState(job_id=7, state="TIMEOUT"), 124, "timeout"),
    ],
)
def test_a_node_that_is_down_later_changes_no_verdict(
    state: JobState, code: int, kind: str
) -> None:
    came_out = outcome(DECIDED, state, [], {"nid002": "down: power"})
    assert (came_out.exit_code, came_out.kind, came_out.unhealthy) == (code, kind, {})


def test_an_elastic_job_fails_of_its_rank_and_not_of_a_node_that_it_survived() -> None:
    decided = decide(make_case({"launcher": "horovod-elastic", "nodes": "1:2"}))
    text = BATCH_OF_CUT_NODE + "elastic: failed: rank 1 on nid001: exit code 3\n"
    state = JobState(job_id=7, state="FAILED", nodes="nid[001-002]", exit_code=3)
    assert outcome(decided, state, log_lines("", text, task=None), {}).exit_code == 3
    assert outcome(decided, state, log_lines("", BATCH_OF_CUT_NODE, task=None), {}).kind == "lost"


def test_nodes_count_from_the_start_of_the_job_on() -> None:
    """A reason that is older than the job is another story; a node that does not answer yet has no reason."""
    text = "nid001|idle|Unknown|none\nnid002|down*|1700000100|Not responding\n"
    text += "nid003|down|1600000000|RMA | rack 7\nnid004|mixed*|Unknown|none\n"
    assert parse.unhealthy_nodes(text, 1700000000) == {
        "nid002": "down*: Not responding",
        "nid004": "mixed*: none",
    }
    assert parse.unhealthy_nodes(text, 0)["nid003"] == "down: RMA | rack 7"
