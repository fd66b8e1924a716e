"""Where ranks are: what faulthandler writes, what is made of it, who has ended, and who has met."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.run_fixtures import Slurm, new_run
from tests.unit.samples import make_case
from toolkit.cli import follow as shown
from toolkit.cli.follow import explain_command
from toolkit.cli.runs import ps as ps_command
from toolkit.errors import SlurmUnreachableError
from toolkit.model.run import Plan, Process
from toolkit.planning.plan import decide
from toolkit.runs import records, stacks, status
from toolkit.runs.run import Run
from toolkit.runs.stacks import Frame, parse, position

MAIN = "0x00007f0000000001"
TORCH = "/usr/lib/python3/dist-packages/torch"
REDUCE = f"""\
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread {MAIN} (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/train.py", line 31 in train
  File "/home/me/train.py", line 40 in <module>
"""
# As Python 3.14 writes them: with the names of threads.
NAMED = f"""\
Thread 0x00007f0000000002 [pin memory] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 320 in wait

Current thread {MAIN} [python3] (most recent call first):
  Garbage-collecting
  File "/home/me/train.py", line 19 in read_shard
  ...
"""


def frames(*rows: tuple[str, str, int]) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, function) for function, file, line in rows)


def test_the_threads_of_each_dump_are_read():
    first, second = parse(REDUCE + NAMED, MAIN)
    functions = [frame.function for frame in first[MAIN]]
    assert functions == ["all_reduce", "wrapper", "train", "<module>"]
    assert second[MAIN] == frames(("read_shard", "/home/me/train.py", 19))
    for end in range(len(REDUCE + NAMED)):  # text that is cut off anywhere
        dumps = parse((REDUCE + NAMED)[:end], MAIN)
        assert all(set(dump) <= {*first, MAIN} for dump in dumps)


C10D = f"{TORCH}/distributed/distributed_c10d.py"
HOROVOD = "/opt/site-packages/horovod/torch/mpi_ops.py"
LIB = "/usr/lib/python3.11"
OWN = ("main", "/home/me/train.py", 9)
POSITIONS: list[tuple[tuple[tuple[str, str, int], ...], str, str]] = [
    ((("all_reduce", C10D, 1), OWN), "", "waits in all_reduce (train.py:9)"),
    # The public function, not those that it calls.
    ((("all_reduce", C10D, 1), ("monitored_barrier", C10D, 2), OWN), "", "waits in monitored_barrier (train.py:9)"),
    ((("allreduce", HOROVOD, 5), OWN), "", "waits in allreduce (train.py:9)"),
    ((("get", f"{LIB}/queue.py", 2), ("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 3), OWN), "", "waits for its data loader (train.py:9)"),
    ((("synchronize", f"{TORCH}/cuda/__init__.py", 1), OWN), "", "waits for its GPU in synchronize (train.py:9)"),
    ((OWN,), "    comm.Barrier()", "waits in Barrier (train.py:9)"),
    ((OWN,), "    time.sleep(9)", "is in main (train.py:9)"),
    ((("<module>", "/home/me/train.py", 9),), "", "is at train.py:9"),
    ((("_read", f"{LIB}/ssl.py", 1), ("load", "/opt/site-packages/numpy/lib/npyio.py", 2), OWN), "", "is in npyio.load (train.py:9)"),
    ((("all_reduce", C10D, 1),), "", "waits in all_reduce (distributed_c10d.py:1)"),
    ((), "", "is in no Python code"),
]  # fmt: skip


@pytest.mark.parametrize(("stack", "code", "expected"), POSITIONS)
def test_what_a_rank_waits_for_is_named_at_the_users_line(stack, code, expected):
    assert position(frames(*stack), lambda _: code) == expected


def process(rank: int | None, text: str = REDUCE, **more: Any) -> Process:
    size = more.pop("size", len(text))
    values: dict[str, Any] = {"main": MAIN, "program": "train.py", "path": Path(f"{rank}.process")}
    values |= {"host": "nid001", "pid": 100 + (rank or 0), "rank": rank, "size": size}
    return Process(text=text.encode(), **(values | more))


def standings(processes: list[Process], plan: Plan, asked: stacks.Sizes) -> list[stacks.Standing]:
    return [stacks.standing(each, plan, asked) for each in processes]


def decided(**settings: Any) -> Plan:
    return decide(
        make_case({"nodes": "2", "ntasks_per_node": 2, "launcher": "torchrun", **settings})
    )


AGENT = process(None, REDUCE.replace("all_reduce", "next_rendezvous"), program="torchrun")
ARRAY = [process(0, env={"SLURM_ARRAY_TASK_ID": number}) for number in "01"]
SUMMARIES: list[tuple[list[Process], dict[str, Any], str]] = [
    ([process(0), process(1), process(2, NAMED), process(3, "", ended=1.0), AGENT], {}, "ranks 0, 1 wait in all_reduce (train.py:31); rank 2 is in read_shard (train.py:19); rank 3 has ended"),
    ([process(0), process(2, "")], {}, "rank 0 waits in all_reduce (train.py:31); ranks 1, 3 have written no file: no Python has started; rank 2 does not answer: gone or stopped"),
    # Of a rank the process counts that others wait for.
    ([process(0, NAMED), process(0), process(0, NAMED, name="Process-1"), *map(process, (1, 2, 3))], {}, "ranks 0-3 wait in all_reduce (train.py:31)"),
    (ARRAY, {"array": "0-1"}, "ranks 0.0, 1.0 wait in all_reduce (train.py:31)"),
    ([AGENT], {}, "process 100 on nid001 waits in next_rendezvous (train.py:31)"),
    ([], {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("processes", "settings", "expected"), SUMMARIES)
def test_mixed_states_are_reported_together(processes, settings, expected):
    plan = decided(**settings)
    stands = standings(processes, plan, {})
    assert stacks.summary(stacks.ranks_of(stands), plan) == expected


def test_threads_of_a_process_that_are_alike_name_it_once():
    """As those of a torchrun agent, one for each log that it copies."""
    wait = REDUCE.splitlines()[1]
    text = "".join(f"Thread 0x{number} (most recent call first):\n{wait}\n\n" for number in "12")
    stands = standings([process(0, text)], decided(), {})
    assert [row["ranks"] for row in stacks.equal_stacks(stands, stands)] == [["0"]]


def test_what_has_moved_since_the_last_time_is_reported():
    asked = {"1": len(NAMED)}
    both = [process(0, REDUCE + REDUCE), process(1, NAMED + REDUCE)]
    stands = standings(both, decided(), asked)
    assert stacks.moved_text(stands, decided()) == (
        "rank 0 has not moved; rank 1 has moved (before: is in read_shard (train.py:19))"
    )
    assert stacks.moved_text(stands[:1], decided()) == "rank 0 has not moved"
    assert stacks.moved_text(standings([process(0)], decided(), {}), decided()) == ""
    (silent,) = standings([process(1, REDUCE)], decided(), {"1": len(REDUCE)})
    assert silent.position.startswith("does not answer")


@pytest.mark.parametrize(
    ("worlds", "settings", "expected"),
    [
        ([4, 4, 4, 4], {}, ""),
        ([1, 1, 1, 1], {}, "4 ranks trained alone: world size 1 each"),
        ([2, 2, 2, 2], {}, "4 ranks trained in 2 groups of 2, which never met"),
        ([2, 2, 1, 1], {}, "4 ranks trained apart: 2 in worlds of 2, 2 in worlds of 1"),
        ([1], {}, ""),  # one rank alone may have a world of its own
        ([1, 1], {"array": "0-3"}, ""),
        ([1, 1], {"launcher": "none"}, ""),
        ([8, 8], {}, ""),  # the others ended before they could note it
    ],
)
def test_ranks_that_never_met_are_counted(worlds, settings, expected):
    processes = [process(rank, world=size) for rank, size in enumerate(worlds)]
    assert records.apart_text(processes, decided(**settings)) == expected


# Files of a run.


def head(rank: int, **more: object) -> str:
    facts = {"host": "nid001", "pid": 7 + rank, "main": MAIN, "program": "train.py", "is_rank": 1}
    facts |= {"env.RANK": rank, "env.SLURM_JOB_ID": 7, **more}
    return "".join(f"{name}={value}\n" for name, value in facts.items()) + "\n"


def run_of(tmp_path: Path, **settings: Any) -> Run:
    directory = tmp_path / "runs" / "train-0001"
    given = replace(decided(**settings), directory=str(tmp_path), run_directory=str(directory))
    run = new_run(directory, 7, plan=given)
    run.reports.mkdir()
    return run


def test_files_that_are_not_the_runs_own_are_not_read(tmp_path, monkeypatch):
    paths = run_of(tmp_path)
    written = {
        "a.process": head(0) + REDUCE,
        "b.process": head(1, **{"env.SLURM_JOB_ID": 8}) + REDUCE,
        "f.ended": head(4) + "x" * (1 << 20) + "\nworld=4 rank=1\n" + REDUCE,
        "g.process": head(5)[:-2],
        "h.process": head(6, pid="-1"),
        "i.process": head(6, pid="\u0663"),
        "j.stacks": head(6) + REDUCE,  # of an older toolkit
        "k.json": "{}",
    }
    for name, text in written.items():
        (paths.reports / name).write_text(text)
    (tmp_path / "elsewhere").write_text(head(2) + REDUCE)
    (paths.reports / "c.process").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(paths.reports / "d.process")
    (paths.reports / "e.process").write_bytes(b"\xff" * 9000)

    def read() -> list[tuple[int | None, int]]:
        found = records.read(paths)
        assert all(parse(each.text.decode(), each.main)[-1][MAIN] for each in found)
        return sorted((each.rank, each.world) for each in found)

    assert read() == [(0, 0), (4, 4)]
    owner = paths.directory.stat().st_uid + 1
    other = os.stat_result((0o40755, 0, 0, 0, owner, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: other)
    assert read() == []


def test_the_line_of_a_frame_is_read_from_the_runs_directory_only(tmp_path):
    given = replace(decided(), directory=str(tmp_path / "project"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text("first\n  second\n")
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "project/link").symlink_to(tmp_path / "secret")
    lines = {("train.py", 2): "second", ("train.py", 9): "", ("train.py", 0): ""}
    lines |= {("../secret", 1): "", ("link", 1): "", ("/proc/self/environ", 1): ""}
    for (name, number), text in lines.items():
        file = str(Path(given.directory) / name)
        assert stacks.source_of(given, Frame(file, number, "f")) == text


# What the commands tell of a run that goes on.


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: Slurm) -> Run:
    """A run whose job runs."""
    paths = run_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    slurm.add(paths.script, 7, nodes="nid001")
    return paths


def followed(paths: Run, slurm: Slurm, monkeypatch: Any, capsys: Any) -> list[str]:
    """Follow the run for a while, as far as it has not ended by then."""
    monkeypatch.setattr(status, "_pause", lambda *_: 0.0)
    monkeypatch.setattr(status, "_CHECK_SECONDS", 0.0)
    slurm.moments = ["RUNNING", "RUNNING", "RUNNING", None]
    monkeypatch.setattr(status, "_PATIENCE", 0.0)
    with pytest.raises(SlurmUnreachableError):
        shown.show(paths, as_json=False)
    return capsys.readouterr().err.splitlines()


def test_silence_is_reported_once_with_what_to_type(paths, slurm, monkeypatch, capsys):
    log = paths.logs / "7.log"
    log.write_text("begins\n")
    os.utime(log, (time.time() - 400,) * 2)
    what = "nothing was printed for 6 minutes; where the ranks are: toolkit stacks train-0001"
    lines = followed(paths, slurm, monkeypatch, capsys)
    assert [line for line in lines if line.startswith("silent")] == [f"silent     {what}"]
    assert f"silent     {what}" in CliRunner().invoke(explain_command).output.splitlines()


@pytest.mark.parametrize(
    ("ends", "minutes", "expected"),
    [
        ("process ended ended ended", 12.2, "ranks 1-3 ended 12 min ago; rank 0 is still running"),
        ("process ended process process", 300.0, "rank 1 ended 5 h ago; ranks 0, 2, 3 are still running"),
        ("process ended ended ended", 0.5, ""),
        ("process process process process", 12.0, ""),
        ("ended ended ended ended", 12.0, ""),
    ],
)  # fmt: skip
def test_ranks_that_ended_long_ago(ends, minutes, expected, paths, slurm, monkeypatch, capsys):
    """A job whose other ranks go on says so wherever it is shown."""
    for rank, suffix in enumerate(ends.split()):
        (paths.reports / f"{rank}.{suffix}").write_text(head(rank))
        # What a rank has started, and Slurm has killed, is no rank.
        (paths.reports / f"{rank}-7.process").write_text(head(rank, is_rank=0))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + minutes * 60)
    lines = followed(paths, slurm, monkeypatch, capsys)
    told = [line.partition(" ")[2].strip() for line in lines if line.startswith("waiting")]
    assert told == ([f"{expected}: toolkit stacks train-0001"] if expected else [])
    for command in (explain_command, ps_command):
        output = CliRunner().invoke(command).output
        assert (" min ago" in output or " h ago" in output) == bool(expected)
        assert expected in output


def test_explain_shows_stacks_and_traces_that_are_there(paths, tmp_path):
    for rank, stack in enumerate((REDUCE, REDUCE, NAMED)):
        (paths.reports / f"nid001-{rank}-0.process").write_text(head(rank) + stack)
    for name in ("0", "12", "x", "0.json"):
        (paths.reports / f"nccl_trace_rank_{name}").write_bytes(b"cos\nsystem\n(S'touch run'\ntR.")
    shown_lines = CliRunner().invoke(explain_command, ["train-0001"]).output.splitlines()
    (stacks,) = [line for line in shown_lines if line.startswith("stacks")]
    assert "ranks 0, 1 wait in all_reduce (train.py:31)" in stacks
    assert "rank 3 has written no file" in stacks
    assert "rank 2 is in read_shard" in stacks
    assert any("torchfrtrace" in line and "ranks 0, 12:" in line for line in shown_lines)
    assert not (tmp_path / "run").exists()
