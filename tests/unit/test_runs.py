"""How a run came out, by Slurm's state, its logs and its nodes; logs of any size in bounded memory."""

from __future__ import annotations

import itertools
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.run_fixtures import new_run
from tests.unit.samples import make_case
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.runs import logs
from toolkit.runs.logs import MOST, History, ends, excerpt
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


@pytest.mark.parametrize(
    ("launcher", "text", "rank", "label"),
    [
        ("torchrun", "3| epoch 1", 3, "3"),
        ("torchrun", "W1121 agent speaks", None, "nid001"),
        # Only agents that label lines of ranks are believed: it may be a row of a script's own table.
        ("srun", "5| 0.3", 1, "1"),
        ("spawn", "5| 0.3", None, "nid001"),
    ],
)
def test_lines_know_their_rank(launcher, text, rank, label):
    (row,) = log_lines("nid001", text, task=1, launcher=launcher)
    assert (row.rank, row.label) == (rank, label)
    assert row.text == ("epoch 1" if rank == 3 else text)


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
SEGFAULT = (
    "srun: error: nid001: task 0: Exited with exit code 139",
    'Fatal Python error: Segmentation fault\n\n  File "/home/me/train.py", line 7 in step',
)
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
        ("srun", {"exit_code": 139}, {"": SEGFAULT[0], "nid001": SEGFAULT[1]}, 139, "rank 0 on nid001: killed by signal 11 (SIGSEGV), train.py, line 7, in step"),
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


# Logs of any size.


def tailed(parts: list[bytes]) -> list[str]:
    """The lines that a reader shows of a log that grows by these parts."""
    with tempfile.TemporaryDirectory() as directory:
        run = new_run(Path(directory, "x-0001"), 7, plan=decide(make_case({"launcher": "srun"})))
        tail, log, rows = logs.Tail(run), run.logs / "7-0-nid001.log", list[logs.Line]()
        for part in parts:
            with log.open("ab") as file:
                file.write(part)
            rows += tail.read()
        return [row.text for row in (*rows, *tail.read(last=True))]


def pieces(data, cuts):
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


@given(
    st.lists(
        st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é".encode(), b"0| x", b"\xff"]), max_size=40
    ),
    st.lists(st.integers(0, 99)),
)
def test_where_the_pieces_end_makes_no_difference(words, cuts):
    data = b"".join(words)
    whole = data.decode("utf-8", "replace") if data else ""
    rows = [row.removesuffix("\r").rsplit("\r", 1)[-1] for row in whole.split("\n")]
    assert tailed(pieces(data, cuts)) == (rows if rows[-1] or data.endswith(b"\r") else rows[:-1])


def test_of_a_very_long_line_the_beginning_is_kept():
    assert tailed([b"x" * 70_000, b"y\r", b"\n"]) == [
        "x" * (64 << 10) + "... [4.5 kB more on this line]"
    ]


@pytest.mark.parametrize("count", [10, 100_000])
def test_both_ends_of_a_log_are_read(count, tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(count)))
    with log.open("rb") as file:
        rows = list(ends(file, 4096))
    assert (rows[0], rows[-1]) == ("line 0", f"line {count - 1}")
    assert sum(len(row) + 1 for row in rows) <= 4096
    numbers = [int(row.split()[1]) for row in rows[:-1]]
    gaps = sum(after != before + 1 for before, after in itertools.pairwise(numbers))
    assert gaps == 0 if count == 10 else gaps <= 2


def sparse_log(path: Path, size: int, end: str) -> None:
    """A log of many lines and many gigabytes that takes no space: its middle is a hole."""
    with path.open("wb") as file:
        file.write(b"first line\n")
        os.truncate(file.fileno(), size)
        file.seek(size)
        file.write(end.encode())


def test_a_job_with_gigabytes_of_logs_comes_out_right_in_little_memory(tmp_path):
    """The verdict and the results stand at the end of each log; `toolkit ps` must not read, nor hold, all of it."""
    decided = decide(make_case({"launcher": "srun"}))
    run = new_run(tmp_path / "x-0001", 7, plan=decided)
    sparse_log(
        run.logs / "7.log", 1 << 30, "\nsrun: error: nid002: task 1: Exited with exit code 3\n"
    )
    sparse_log(run.logs / "7-0-nid001.log", 4 << 30, '\n{"accuracy": 0.9}\n')
    sparse_log(run.logs / "7-1-nid002.log", 1 << 30, "\nKeyError: 'weights'\n")
    tracemalloc.start()
    taken = excerpt(run, run.logs_of(7), History())
    state = JobState(job_id=7, state="FAILED", exit_code=3, nodes="nid[001-002]")
    came_out = outcome(decided, state, taken, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (came_out.exit_code, came_out.results) == (3, {"accuracy": 0.9})
    assert came_out.message == "rank 1 on nid002: exit code 3"
    assert peak < 100_000_000
    assert any("KeyError" in line.text for line in taken)
    assert sum(len(line.text) for line in taken) <= MOST


def test_whole_lines_are_read_of_logs_that_have_grown(tmp_path, monkeypatch):
    run = new_run(tmp_path / "x-0001", 7)
    tail, opened, really_open = logs.Tail(run), [], Log.open

    def open_counted(log: Log) -> BinaryIO:
        opened.append(log.path.name)
        return really_open(log)

    def read(*, last: bool = False) -> list[str]:
        return [line.text for line in tail.read(last=last)]

    monkeypatch.setattr(Log, "open", open_counted)
    rank = run.logs / "7-0-nid001.log"
    rank.write_text("one\ntw")
    (run.logs / "70-0-nid001.log").write_text("another job's\n")
    assert read() == ["one"]
    with rank.open("a") as stream:
        stream.write("o\n10%\r20%\rthree\r\nno newline")
    (run.logs / "7.log").write_text("batch\n")
    assert read() == ["batch", "two", "three"]
    assert (read(), opened) == ([], [rank.name, "7.log", rank.name])
    assert read(last=True)[-1] == "no newline"
    assert [log.host for log in run.logs_of(7)] == ["", "nid001"]
