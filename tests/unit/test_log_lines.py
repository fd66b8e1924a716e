"""Logs of any size are read in bounded memory, and the lines that are kept are the right ones."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.run_fixtures import new_run
from tests.unit.samples import make_case
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.runs import logs
from toolkit.runs.logs import MOST, History, Splitter, ends, excerpt
from toolkit.runs.outcome import outcome
from toolkit.runs.run import Log


def split(parts: Iterable[bytes]) -> list[str]:
    splitter = Splitter()
    return [row for part in parts for row in splitter.feed(part)] + list(splitter.rest())


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
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
    assert split(pieces(data, cuts)) == (rows if rows[-1] or data.endswith(b"\r") else rows[:-1])


@pytest.mark.parametrize("count", [10, 1000, 100_000])
def test_both_ends_of_a_log_are_read(count, tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(count)))
    with log.open("rb") as file:
        rows = list(ends(file, 4096))
    assert rows[0] == "line 0"
    assert rows[-1] == f"line {count - 1}"
    assert sum(len(row) + 1 for row in rows) <= 4096
    if count == 10:
        assert len(rows) == 10
    numbers = [int(row.split()[1]) for row in rows[:-1]]
    assert sum(after != before + 1 for before, after in itertools.pairwise(numbers)) <= (
        0 if count == 10 else 2
    )


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


def test_logs_are_read_as_they_grow_and_only_whole_lines_of_those_that_have_grown(
    tmp_path, monkeypatch
):
    run = new_run(tmp_path / "x-0001", 7)
    tail, opened, really_open = logs.Tail(run), list[str](), Log.open

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
