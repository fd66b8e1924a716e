"""Ways to run: what is decided for jobs that go back into the queue, for sweeps, for chains, and for those at a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.samples import inputs
from toolkit.errors import PlanError
from toolkit.model.job import Job
from toolkit.model.run import JobState
from toolkit.plan import plan
from toolkit.runs import logs, store
from toolkit.runs.outcome import outcome
from toolkit.ways import requeue

BATCH = """\
toolkit: attempt 1 of at most 21 begins 2026-11-21T08:00:00Z on nid[001-002]
srun: error: nid001: task 0: Exited with exit code 75
toolkit: attempt 1 of at most 21 ends 2026-11-21T08:01:40Z: told to stop by USR1, goes back into the queue
toolkit: attempt 2 of at most 21 begins 2026-11-21T08:02:00Z on nid001
toolkit: attempt 3 of at most 21 begins 2026-11-21T08:03:00Z on nid003
srun: error: nid003: task 1: Exited with exit code 3
toolkit: attempt 3 of at most 21 ends 2026-11-21T08:03:20Z: exit code 3
"""


def refusal(job: dict[str, Any]) -> str:
    with pytest.raises(PlanError) as caught:
        plan(inputs(job))
    return "; ".join(f"{finding.place} {finding.cause}" for finding in caught.value.findings)


def lines_of(text: str, name: str) -> list[logs.Line]:
    return [logs.line(row, parsed(name), task_is_rank=True) for row in text.splitlines()]


def parsed(name: str) -> store.Log:
    """A log as a run's directory knows it by its name."""
    match = store._LOG.match(name)
    assert match
    element = int(match["element"]) if match["element"] else None
    task = int(match["task"]) if match["task"] else None
    return store.Log(Path(name), 7, task, match["host"] or "", element, int(match["restart"] or 0) + 1)


@pytest.mark.parametrize(
    ("job", "signal", "wait"),
    [
        ({"requeue": True}, "B:USR1@120", 100),
        ({"requeue": True, "time": "4:00"}, "B:USR1@60", 40),
        ({"requeue": True, "signal": "RB:12@600"}, "B:USR2@600", 580),
        ({"requeue": True, "signal": "B:SIGUSR1@10"}, "B:USR1@10", 5),
    ],
)
def test_a_job_that_goes_back_is_told_to_stop_in_time(job: dict[str, Any], signal: str, wait: int) -> None:
    decided = plan(inputs(job))
    directives = dict(decided.directives)
    assert directives["signal"] == signal
    assert "requeue" in directives
    assert "no-requeue" not in directives
    assert decided.requeue is not None
    assert decided.requeue.wait == wait


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"requeue": True, "signal": "USR1@60"}, "--signal"),
        ({"requeue": True, "signal": "B:TERM@60"}, "USR1 or USR2"),
        ({"requeue": True, "signal": "B:USR1@60", "time": "2"}, "as soon as it runs"),
        ({"max_requeues": 3}, "--max-requeues"),
    ],
)
def test_what_could_not_go_back_is_refused(job: dict[str, Any], words: str) -> None:
    assert words in refusal(job)


def test_the_history_of_a_job_is_read_from_what_its_script_says() -> None:
    found = requeue.stints(lines_of(BATCH, "7.log"))
    assert [(stint.number, stint.nodes, stint.ended - stint.began if stint.ended else 0) for stint in found] == [
        (1, "nid[001-002]", 100),
        (2, "nid001", 0),
        (3, "nid003", 20),
    ]
    assert [line.split("  ", 2)[2] for line in requeue.told(found)] == [
        "1:40  told to stop by USR1, goes back into the queue",
        "stopped by Slurm, which queued it again",
        "0:20  exit code 3",
    ]


def test_only_the_last_attempt_says_how_a_job_came_out() -> None:
    decided = plan(inputs({"requeue": True, "launcher": "srun"}))
    lines = [
        *lines_of(BATCH, "7.log"),
        *lines_of('{"accuracy": 0.1}', "7-0-nid001.log"),
        *lines_of('{"accuracy": 0.9}', "7.2-1-nid003.log"),
    ]
    came_out = outcome(decided, JobState(job_id=7, state="FAILED", exit_code=1), requeue.last(lines), {})
    assert came_out.failure is not None
    assert (came_out.exit_code, came_out.failure.host) == (3, "nid003")
    assert (came_out.results, came_out.ranks) == ({"accuracy": 0.9}, {"nid003": (1,)})


def test_a_script_cannot_write_history_and_elements_of_an_array_have_their_own() -> None:
    forged = lines_of(BATCH, "7-0-nid001.log")
    assert requeue.stints(forged) == ()
    assert requeue.last(forged) == forged
    found = requeue.stints([*lines_of(BATCH, "7_1.log"), *lines_of(BATCH.splitlines()[0], "7_0.log")])
    assert [(stint.element, stint.number) for stint in found] == [(0, 1), (1, 1), (1, 2), (1, 3)]
    assert requeue.told(found)[0].startswith("0.1  nid[001-002]")


def test_without_it_nothing_changes() -> None:
    assert requeue.decide(Job(signal="B:USR1@60"), None) is None
    assert dict(plan(inputs({"signal": "USR1@60"})).directives)["signal"] == "USR1@60"
