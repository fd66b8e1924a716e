"""Requeued jobs, sweeps, dependencies and interactive jobs: what is planned and read of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.run_fixtures import new_run
from tests.unit.samples import make_case
from toolkit.cli.connect import shell as shell_command
from toolkit.cli.shared import points_table
from toolkit.errors import PlanError
from toolkit.model.run import JobState, Outcome, Plan, Submission
from toolkit.planning.plan import decide
from toolkit.runs import logs, processes, status
from toolkit.runs.outcome import failed_points, outcome, read_elements, summary
from toolkit.runs.run import Run

BATCH = """\
toolkit: attempt 1 of at most 21 begins 2026-11-21T08:00:00Z on nid[001-002]
srun: error: nid001: task 0: Exited with exit code 75
toolkit: attempt 1 of at most 21 ends 2026-11-21T08:01:40Z: told to stop by USR1, goes back into the queue
toolkit: attempt 2 of at most 21 begins 2026-11-21T08:02:00Z on nid001
toolkit: attempt 3 of at most 21 begins 2026-11-21T08:03:00Z on nid003
srun: error: nid003: task 1: Exited with exit code 3
toolkit: attempt 3 of at most 21 ends 2026-11-21T08:03:20Z: exit code 3
"""


def run_with(directory: Path, files: dict[str, str], plan: Plan) -> Run:
    """A run's directory with these logs."""
    run = Run(directory)
    run.plan = plan
    run.job = Submission(job_id=7, site="local", submitted="")
    run.logs.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (run.logs / name).write_text(text)
    return run


REQUEUED = decide(make_case({"requeue": True, "launcher": "srun"}))


def test_the_history_of_a_job_is_read_from_what_its_script_says(tmp_path):
    """Not from what a rank prints; elements of an array have their own."""
    found = logs.history(run_with(tmp_path / "a", {"7.log": BATCH}, REQUEUED)).attempts
    assert logs.describe(found) == [
        "1  nid[001-002]  1:40  told to stop by USR1, goes back into the queue",
        "2  nid001  stopped by Slurm, which queued it again",
        "3  nid003  0:20  exit code 3",
    ]
    forged = run_with(tmp_path / "b", {"7-0-nid001.log": BATCH}, REQUEUED)
    assert logs.history(forged).attempts == ()
    files = {"7_1.log": BATCH, "7_0.log": BATCH.splitlines()[0]}
    found = logs.history(run_with(tmp_path / "c", files, REQUEUED)).attempts
    assert [(one.element, one.number) for one in found] == [(0, 1), (1, 1), (1, 2), (1, 3)]
    assert logs.describe(found)[0] == "0.1  nid[001-002]  the last one"


def test_only_the_last_attempt_says_how_a_job_came_out(tmp_path):
    files = {
        "7.log": BATCH,
        "7-0-nid001.log": '{"accuracy": 0.1}',
        "7.2-1-nid003.log": '{"accuracy": 0.9}',
    }
    run = run_with(tmp_path, files, REQUEUED)
    lines = logs.excerpt(run, run.logs_of(7), logs.history(run))
    assert not any("nid001" in line.text for line in lines)
    came_out = outcome(REQUEUED, JobState(job_id=7, state="FAILED", exit_code=1), lines, {})
    assert came_out.failure is not None
    assert (came_out.exit_code, came_out.failure.host) == (3, "nid003")
    assert (came_out.results, came_out.ranks) == ({"accuracy": 0.9}, {"nid003": (1,)})


SWEEP = decide(make_case({"launcher": "srun", "sweep": ("lr=1,2,3",)}))
COMPLETED = JobState(job_id=8, state="COMPLETED")
LOGS = {
    "7_0-0-nid001.log": '{"loss": 0.5, "curve": [1]}',
    "7_1.log": "srun: error: nid002: task 1: Exited with exit code 3\n",
}


@pytest.mark.parametrize(
    ("states", "ended", "points", "failed", "text"),
    [
        (
            {0: COMPLETED, 1: JobState(job_id=9, state="FAILED", exit_code=3)},
            False,
            [("COMPLETED", 0), ("FAILED", 3), ("PENDING", None)],
            [1],
            "3 points: 1 done, 1 to come, 1 failed (1)",
        ),
        # What never started failed, and can be run again; what Slurm has forgotten is called unknown.
        (
            {0: COMPLETED},
            True,
            [("COMPLETED", 0), ("UNKNOWN", None), ("CANCELLED", 130)],
            [2],
            "3 points: 1 done, 1 unknown (1), 1 failed (2)",
        ),
    ],
)
def test_each_point_of_a_sweep_has_a_state_and_results(
    states, ended, points, failed, text, tmp_path
):
    run = run_with(tmp_path, LOGS, SWEEP)
    found = read_elements(run, states, logs.History(), (), ended=ended)
    assert [(point.state, point.exit_code) for point in found] == points
    assert found[0].results == {"loss": 0.5, "curve": [1]}
    assert failed_points(found) == failed
    assert summary(found, "point") == text
    rows = [row.split() for row in points_table(SWEEP.points, found).splitlines()]
    assert rows[:2] == [
        ["POINT", "lr", "STATE", "EXIT", "loss"],
        ["0", "1", "COMPLETED", "0", "0.5"],
    ]


def test_a_shell_waits_for_other_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--site", "generic", "--image", "docker://python:3.11", "--dry-run", "--after"]
    shown = CliRunner().invoke(shell_command, [*words, "4711"], standalone_mode=False)
    assert "--dependency=afterok:4711" in shown.output, shown.exception
    refused = CliRunner().invoke(shell_command, [*words, "no-such-0007"], standalone_mode=False)
    assert isinstance(refused.exception, PlanError)
    assert "no run 'no-such-0007'" in refused.exception.findings[0].cause


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("train-0001", "failed", "would never start"),
        ("afternotok:train-0001", "ok", "succeeded"),
        ("a:b", "ok", "does not name a run"),
        ("x", "ok", "no run"),
    ],
)
def test_what_a_job_can_never_run_after_is_refused(text, kind, words, tmp_path):
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, kind=kind)
    new_run(tmp_path / "train-0001", outcome=outcome)
    found, findings = status.dependencies([text], tmp_path, None)
    assert found == ()
    assert words in findings[0].cause
    assert findings[0].place == "--after"


def test_what_the_processes_of_a_job_use_is_read():
    printed = [
        "process\tnid002\t40\t0\t1000\tSLURM_PROCID=1 \tsrun: --x",
        "process\tnid002\t42\t99\t2000\tRANK=3 SLURM_PROCID=1 \tpython3 -u train.py",
        "process\tnid001\t41\t0\t3000\tSLURM_PROCID=0 \t/opt/venv/bin/python3 /opt/venv/bin/torchrun x",
        "process\tnid001\t43\t7\t500\t\t",
        "memory\tnid002\t42\t1024",
        "memory\tnid001\t42\t[N/A]",
        "gpu\tnid002\t1\t[N/A]\t2048\t16384",
        "srun: something else",
    ]
    found, gpus = processes.parse(printed, task_is_rank=False)
    assert [
        (one.host, one.rank, one.pid, one.cpu, one.memory, one.gpu_memory) for one in found
    ] == [
        ("nid001", None, 41, 0, 3072000, 0),
        ("nid001", None, 43, 7, 512000, 0),
        ("nid002", None, 40, 0, 1024000, 0),
        ("nid002", 3, 42, 99, 2048000, 1 << 30),
    ]
    assert [one.pid for one in processes.working(found)] == [41, 43, 42]
    assert gpus == [processes.Gpu("nid002", 1, 0, 2 << 30, 16 << 30)]
    ranks = {one.pid: one.rank for one in processes.parse(printed, task_is_rank=True)[0]}
    assert ranks == {40: 1, 41: 0, 42: 3, 43: None}
