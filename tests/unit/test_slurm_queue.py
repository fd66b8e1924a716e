"""Parse jobs of squeue and sacct, whatever their names are and whichever version prints them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from toolkit.model.run import JobState
from toolkit.slurm import hostlist, queue

END = "<1f2e3d4c>"
HOSTILE = "a | b\n7<S>8\t%s <1f2e3d4> \x1f é"


def squeue(*rows: Iterable[str]) -> str:
    """Return what squeue prints for rows of values."""
    return "".join("".join(f"{value}{END}" for value in row) + "\n" for row in rows)


def row(number: int, *, array: int = 0, task: str = "N/A", **values: str) -> list[str]:
    """Return the values of one job in squeue's order."""
    given = {
        "state": "COMPLETED",
        "reason": "None",
        "nodes": "nid001",
        "partition": "main",
        "code": "0:0",
        "start": "100",
        "end": "160",
        "name": "train",
        "batch": "1",
        "command": "/runs/a/job.sbatch",
        **values,
    }
    return [str(number), str(array or number), task, *given.values()]


def one(text: str) -> JobState:
    """Return the state of the only job in an answer."""
    (entry,) = queue.squeue_entries(text, END)
    return entry.state


def test_any_name_and_path_is_read() -> None:
    path = f"/runs/{HOSTILE}/job.sbatch"
    text = squeue(row(7, name=HOSTILE, command=path), row(8, name="next"))
    first, second = (entry.state for entry in queue.squeue_entries(text, END))
    assert (first.name, first.command) == (HOSTILE, path)
    assert (second.job_id, second.name, second.command) == (8, "next", "/runs/a/job.sbatch")


def test_what_a_plugin_prints_before_the_answer_is_left_out() -> None:
    assert one("squeue: warning: 99 of something\n" + squeue(row(7))).job_id == 7
    assert queue.squeue_entries("some warning\n", END) == []


def test_an_answer_that_was_cut_off_gives_the_whole_rows() -> None:
    text = squeue(row(7), row(8))
    assert [entry.state.job_id for entry in queue.squeue_entries(text[:-30], END)] == [7]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("3:0", (3, 0)),
        ("0:9", (0, 9)),
        ("768", (3, 0)),
        ("9", (0, 9)),
        ("137", (0, 9)),
        ("", (0, 0)),
    ],
)
def test_exit_codes_of_every_version(code: str, expected: tuple[int, int]) -> None:
    state = one(squeue(row(7, state="FAILED", code=code)))
    assert (state.exit_code, state.signal) == expected


def test_salloc_has_no_script() -> None:
    assert one(squeue(row(7, batch="0", command="/usr/bin/bash"))).command == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", [3]),
        ("3-6", [3, 4, 5, 6]),
        ("0-8:4%2", [0, 4, 8]),
        ("[1,5-6%1]", [1, 5, 6]),
        ("1,3,...", [1, 3]),
        ("", []),
    ],
)
def test_task_ids(text: str, expected: list[int]) -> None:
    assert hostlist.task_ids(text) == set(expected)


@pytest.mark.parametrize(
    ("states", "together", "code"),
    [
        (("PENDING", "PENDING"), "PENDING", 0),
        (("RUNNING", "PENDING"), "RUNNING", 0),
        (("COMPLETED", "PENDING"), "RUNNING", 0),
        (("COMPLETED", "COMPLETED"), "COMPLETED", 0),
        (("COMPLETED", "FAILED"), "FAILED", 3),
    ],
)
def test_an_array_is_one_job(states: tuple[str, str], together: str, code: int) -> None:
    rows = [
        row(8 - task, array=7, task=str(task), state=state, nodes=f"nid00{task}")
        for task, state in enumerate(states)
    ]
    rows[1][7] = "3:0" if states[1] == "FAILED" else "0:0"
    found = queue.job_states(queue.squeue_entries(squeue(*rows), END))[7]
    assert (found.job_id, found.state, found.exit_code) == (7, together, code)
    assert found.nodes == "nid000,nid001"


def sacct(*rows: str) -> list[queue.Entry]:
    """Parse rows of sacct whose values are separated by a bar."""
    return queue.sacct_entries("".join(line.replace("|", END) + f"{END}\n" for line in rows), END)


ACCOUNTS = (
    "8|7_0|COMPLETED|None|nid001|main|0:0|5|9|x|sbatch --parsable /runs/a/job.sbatch",
    "9|7_1|FAILED|NonZeroExitCode|nid001|main|3:0|5|9|x|sbatch job.sbatch",
)


def test_the_accounting_shows_the_words_of_a_submission() -> None:
    blank = "12|12|RUNNING|None|nid001|main|0:0|5|Unknown|x|sbatch /r/a b/job.sbatch"
    assert queue.job_of(sacct(blank), "/r/a b/job.sbatch", 0) == 12
    assert queue.job_of(sacct(*ACCOUNTS), "/runs/a/job.sbatch", 0) == 7


def test_the_accounting_fills_in_what_the_queue_has_forgotten() -> None:
    """Squeue forgets the tasks of an array in the order in which they end: a failure may be gone."""
    rows = row(10, array=7, task="2"), row(7, array=7, task="3", state="CANCELLED")
    queued = queue.squeue_entries(squeue(*rows), END)
    accounted = sacct(*ACCOUNTS, "10|7_2|RUNNING|None|nid001|main|0:0|5|Unknown|x|")
    states = queue.job_states(queue.merge(queued, accounted))
    assert states[7].state == "FAILED"
    assert states[10].state == "COMPLETED"


def test_the_accounting_is_late_and_does_not_bring_back_a_pending_task() -> None:
    queued = queue.squeue_entries(squeue(row(7, array=7, task="3")), END)
    accounted = sacct("7_[0-2]|7_[0-2]|PENDING|None|None assigned|main|0:0|Unknown|Unknown|x|")
    assert queue.job_states(queue.merge(queued, accounted))[7].state == "COMPLETED"
    assert queue.job_states(queue.merge([], accounted))[7].state == "PENDING"


SCRIPT = "/runs/a b/x-0001/job.sbatch"
DURING: dict[str, Any] = {"start": "1000", "end": "1060"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(9, command=SCRIPT, **DURING), row(12, command=SCRIPT, **DURING)], 12),
        (
            [
                row(9, array=7, task="1", command=SCRIPT, **DURING),
                row(7, array=7, task="2-3", command=SCRIPT, state="PENDING"),
            ],
            7,
        ),
        ([row(7, command="(null)", **DURING)], None),
        ([row(7, command=SCRIPT, batch="0", **DURING)], None),
        ([row(7, command=SCRIPT + ".old", **DURING)], None),
        ([row(7, command="/other" + SCRIPT, **DURING)], None),
        ([row(7, command=f"{SCRIPT} --epochs 3", **DURING)], None),
    ],
)
def test_a_job_is_found_by_its_script(rows: list[list[str]], expected: int | None) -> None:
    assert queue.job_of(queue.squeue_entries(squeue(*rows), END), SCRIPT, 1000.7) == expected


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ({"state": "COMPLETED", "start": "900", "end": "999"}, False),
        ({"state": "CANCELLED", "start": "999", "end": "999"}, False),
        ({"state": "COMPLETED", "start": "1000", "end": "1000"}, True),
        ({"state": "PENDING", "start": "N/A", "end": "N/A"}, True),
        ({"state": "RUNNING", "start": "2000", "end": "9999"}, True),
        ({"state": "RUNNING", "start": "998", "end": "9999"}, True),  # the clocks differ
        ({"state": "RUNNING", "start": "100", "end": "9999"}, False),
    ],
)
def test_a_job_of_a_removed_run_of_the_same_name_is_not_the_run_s(
    values: dict[str, Any], is_found: bool
) -> None:
    entries = queue.squeue_entries(squeue(row(7, command=SCRIPT, **values)), END)
    assert queue.job_of(entries, SCRIPT, 1000.0) == (7 if is_found else None)
