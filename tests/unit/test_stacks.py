"""`toolkit stacks`: what faulthandler writes, what is made of it, and the module that asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.samples import MANIFEST, make_case
from toolkit import scripts
from toolkit.cli import follow as shown
from toolkit.cli.explain import command as explain_command
from toolkit.cli.stacks import command
from toolkit.config import package_directory
from toolkit.errors import ForbiddenError
from toolkit.model.base import to_json
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Outcome, Submission
from toolkit.planning.plan import decide
from toolkit.runs import follow, stack_files, status, store
from toolkit.runs.stacks import Frame, numbers_text, parse, position, read_process, world_of
from toolkit.runs.standings import (
    Answer,
    apart_text,
    equal_stacks,
    moved_text,
    standings,
    summary,
)

HOOK = package_directory("scripts") / "report" / "sitecustomize.py"
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


def head(rank: int, *, pid: int = 7, **more: object) -> str:
    facts = {
        "host": "nid001",
        "pid": pid,
        "parent": 1,
        "main": MAIN,
        "program": "train.py",
        "env.RANK": rank,
        "env.SLURM_JOB_ID": 7,
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in facts.items()) + "\n"


def frames(*rows: tuple[str, str, int]) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, function) for function, file, line in rows)


def test_the_threads_of_each_dump_are_read() -> None:
    first, second = parse(REDUCE + NAMED, MAIN)
    assert [frame.function for frame in first[MAIN]] == [
        "all_reduce",
        "wrapper",
        "train",
        "<module>",
    ]
    assert second[MAIN] == frames(("read_shard", "/home/me/train.py", 19))
    assert parse(REDUCE + REDUCE[:40], MAIN)[0] == first


@pytest.mark.parametrize("text", [REDUCE, NAMED, REDUCE + NAMED])
def test_text_that_is_cut_off_anywhere_is_read_as_far_as_it_goes(text: str) -> None:
    whole = parse(text, MAIN)[0]
    for end in range(len(text)):
        dumps = parse(text[:end], MAIN)
        assert all(set(dump) <= {*whole, MAIN} for dump in dumps)
        assert read_process(head(3)[: min(end, len(head(3)) - 1)]) is None


HOSTILE = [
    "File" * 50_000,
    '  File "' * 30_000,
    "Thread 0x" + "f" * 200_000,
    "Current thread 0x1 [" * 20_000,
    "\n" * 200_000,
    f"Thread {MAIN} (most recent call first):\n" * 5_000,
    f"Thread {MAIN} (most recent call first):\n" + '  File "a", line 1 in f\n' * 9_000,
    '  File "x", line 99999999999999999999 in f\n',
    "\0\x1b[2J" * 40_000,
    "pid=-1\nmain=x\n\n",
    "pid=\u0663\nmain=x\n\n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    began = time.process_time()
    dumps = parse(text, MAIN)
    read_process(text)
    assert time.process_time() - began < 1
    assert sum(len(rows) for dump in dumps for rows in dump.values()) <= 20_000


LOADER = f"{TORCH}/utils/data/dataloader.py"
OWN = ("main", "/home/me/train.py", 9)
POSITIONS: list[tuple[tuple[tuple[str, str, int], ...], str, str]] = [
    ((("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 1), OWN), "", "waits in all_reduce (train.py:9)"),
    # The public function, not those that it calls.
    ((("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 1), ("monitored_barrier", f"{TORCH}/distributed/distributed_c10d.py", 2), OWN), "", "waits in monitored_barrier (train.py:9)"),
    ((("synchronize", "/opt/site-packages/horovod/torch/mpi_ops.py", 1), ("allreduce", "/opt/site-packages/horovod/torch/mpi_ops.py", 5), OWN), "", "waits in allreduce (train.py:9)"),
    ((("wait", "/usr/lib/python3.11/threading.py", 1), ("get", "/usr/lib/python3.11/queue.py", 2), ("_try_get_data", LOADER, 3), OWN), "", "waits for its data loader (train.py:9)"),
    ((("synchronize", f"{TORCH}/cuda/__init__.py", 1), OWN), "", "waits for its GPU in synchronize (train.py:9)"),
    ((OWN,), "    comm.Barrier()", "waits in Barrier (train.py:9)"),
    ((OWN,), "    work.wait()", "waits in wait (train.py:9)"),
    ((OWN,), "    time.sleep(9)", "is in main (train.py:9)"),
    ((("<module>", "/home/me/train.py", 9),), "", "is at train.py:9"),
    ((("_read", "/usr/lib/python3.11/ssl.py", 1), ("load", "/opt/site-packages/numpy/lib/npyio.py", 2), OWN), "", "is in npyio.load (train.py:9)"),
    ((("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 1),), "", "waits in all_reduce (distributed_c10d.py:1)"),
    ((), "", "is in no Python code"),
]  # fmt: skip


@pytest.mark.parametrize(("stack", "code", "expected"), POSITIONS)
def test_what_a_rank_waits_for_is_named_at_the_users_line(
    stack: tuple[tuple[str, str, int], ...], code: str, expected: str
) -> None:
    assert position(frames(*stack), lambda _: code).text() == expected


def answer(rank: int, stack: str = REDUCE, before: str = "", **more: Any) -> Answer:
    process = read_process(head(rank, pid=100 + rank, **more))
    assert process is not None
    now, earlier = parse(stack, MAIN), parse(before, MAIN)
    return Answer(process, now[-1] if now else None, earlier[-1] if earlier else None)


def decided(**settings: Any) -> Plan:
    return decide(
        make_case({"nodes": "2", "ntasks_per_node": 2, "launcher": "torchrun", **settings})
    )


def test_mixed_states_are_reported_together() -> None:
    answers = [answer(0), answer(1), answer(2, NAMED), answer(3, "")._replace(has_ended=True)]
    agent = answer(9, REDUCE, program="torch.distributed.run", **{"env.RANK": ""})
    found = standings([*answers, agent], decided(), lambda _: "")
    assert summary(found, decided()) == (
        "ranks 0, 1 wait in all_reduce (train.py:31); rank 2 is in read_shard (train.py:19); "
        "rank 3 has ended"
    )
    assert "ranks 1, 3 have written no file" in summary([found[0], found[2]], decided())
    groups = equal_stacks([*answers, agent], found)
    assert groups[0].owners("rank").startswith("ranks 0, 1, process 109 on nid001")
    array = decided(array="0-1")
    several = [answer(0, **{"env.SLURM_ARRAY_TASK_ID": str(number)}) for number in (0, 1)]
    text = summary(standings(several, array, lambda _: ""), array)
    assert text == "ranks 0.0, 1.0 wait in all_reduce (train.py:31)"


def test_agents_are_named_where_no_rank_has_started() -> None:
    stack = REDUCE.replace("all_reduce", "next_rendezvous")
    agent = answer(9, stack, program="torch.distributed.run", **{"env.RANK": ""})
    text = summary(standings([agent], decided(), lambda _: ""), decided())
    assert text == "process 109 on nid001 waits in next_rendezvous (train.py:31)"


def test_what_has_moved_since_the_last_time_is_reported() -> None:
    same, other = answer(0, REDUCE, REDUCE), answer(1, REDUCE, NAMED)
    found = standings([same, other], decided(), lambda _: "")
    assert moved_text(found, "rank") == (
        "rank 1 was elsewhere: it is in read_shard (train.py:19); rank 0 has not moved"
    )
    assert moved_text(found[:1], "rank") == "rank 0 has not moved"
    assert moved_text(standings([answer(0)], decided(), lambda _: ""), "rank") == ""


def test_many_ranks_are_ranges() -> None:
    assert numbers_text(range(4)) == "0, 1, 2, 3"
    assert numbers_text([*range(7), *range(8, 64)]) == "0-6, 8-63"
    assert numbers_text(range(0, 200, 2)).endswith(", 38, ...")


# The module, in processes of its own.


def ask(tmp_path: Path, text: str, *, env: dict[str, str] | None = None) -> list[str]:
    """Run a script under the module; return what the files of stacks hold."""
    report = tmp_path / "report"
    report.mkdir()
    for path in HOOK.parent.glob("*.py"):
        (report / path.name).write_bytes(path.read_bytes())
    script = tmp_path / "train.py"
    script.write_text("import os, signal\n" + textwrap.dedent(text))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    added = {"PYTHONPATH": str(report), "SLURM_JOB_ID": "7", "RANK": "3", **(env or {})}
    words = (sys.executable, str(script))
    done = subprocess.run(
        words,
        env=clean | added,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [path.read_text() for path in sorted(report.glob("*.stacks"))]


_ASK = "os.kill(os.getpid(), signal.SIGURG)\n"


def test_the_signal_writes_the_stacks_and_the_program_goes_on(tmp_path: Path) -> None:
    script = f"""\
    def step():
        {_ASK}
    step()
    open("end", "w")
    """
    (text,) = ask(tmp_path, script)
    process = read_process(text)
    assert process is not None
    assert (process.report.env["RANK"], process.report.program) == ("3", str(tmp_path / "train.py"))
    stack = parse(text.partition("\n\n")[2], process.main)[-1][process.main]
    assert [frame.function for frame in stack] == ["step", "<module>"]
    assert (tmp_path / "end").exists()


@pytest.mark.parametrize(
    "register",
    [
        "signal.signal(signal.SIGURG, lambda *_: open('own', 'w').write('x'))",
        "import faulthandler; own = open('own', 'w'); faulthandler.register(signal.SIGURG, file=own)",
    ],
)
def test_a_handler_of_the_programs_own_is_the_one_that_runs(tmp_path: Path, register: str) -> None:
    child = "if os.fork() == 0:\n    os.unlink('own')\n    " + _ASK + "    os._exit(0)\nos.wait()\n"
    assert ask(tmp_path, f"{register}\n{_ASK}{child}") == []
    assert (tmp_path / "own").exists() or "faulthandler" in register


def test_a_program_that_was_not_asked_leaves_no_file(tmp_path: Path) -> None:
    helper = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
    assert ask(tmp_path, helper) == []


def test_the_end_of_a_rank_is_noted(tmp_path: Path) -> None:
    (text,) = ask(
        tmp_path, "import sys, types\nsys.modules['mpi4py'] = types.ModuleType('mpi4py')\n"
    )
    assert text.endswith("\n\nended\n")


def test_outside_a_job_nothing_is_written(tmp_path: Path) -> None:
    assert ask(tmp_path, "pass", env={"SLURM_JOB_ID": ""}) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_has_a_file_of_its_own(tmp_path: Path, method: str) -> None:
    script = f"""\
    import multiprocessing
    def work():
        {_ASK}
    if __name__ == "__main__":
        child = multiprocessing.get_context("{method}").Process(target=work)
        child.start()
        child.join()
        {_ASK}
    """
    texts = ask(tmp_path, script)
    processes = [read_process(text) for text in texts]
    names = {process.report.process: process for process in processes if process}
    assert len(texts) == 2
    assert names.keys() == {"", f"{method.title()}Process-1"}
    assert names[f"{method.title()}Process-1"].parent == names[""].report.pid
    assert all(
        text.count(" in work\n") == (process != names[""])
        for text, process in zip(texts, processes, strict=True)
    )


def test_a_forked_process_writes_nothing_into_files_of_the_program(tmp_path: Path) -> None:
    """Such as one that has closed all files and opened its own, under the numbers of the others."""
    script = """\
    os.closerange(3, 100)
    files = [open(str(number), "w") for number in range(20)]
    if os.fork() == 0:
        for file in files:
            file.write("x")
            file.close()
        os._exit(0)
    os.wait()
    """
    ask(tmp_path, script)
    assert [(tmp_path / str(number)).read_text() for number in range(20)] == ["x"] * 20


# Reading and asking.


def run_of(tmp_path: Path, **settings: Any) -> store.Paths:
    directory = tmp_path / "runs" / "train-0001"
    directory.mkdir(parents=True)
    given = replace(decided(**settings), directory=str(tmp_path), run_directory=str(directory))
    paths = store.write(directory, given, Job(), scripts.script(given))
    submitted = "2026-11-23T08:00:00+00:00"
    paths.submission.write_text(to_json(Submission(job_id=7, site="local", submitted=submitted)))
    paths.reports.mkdir()
    paths.logs.mkdir()
    return paths


def test_files_that_are_not_the_runs_own_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = run_of(tmp_path)
    (paths.reports / "a-1-0.stacks").write_text(head(0) + REDUCE)
    (paths.reports / "b-1-0.stacks").write_text(head(1, **{"env.SLURM_JOB_ID": 8}) + REDUCE)
    (tmp_path / "elsewhere").write_text(head(2) + REDUCE)
    (paths.reports / "c-1-0.stacks").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(paths.reports / "d-1-0.stacks")
    (paths.reports / "e-1-0.stacks").write_bytes(b"\xff" * 9000)
    (paths.reports / "f-1-0.stacks").write_text(head(4) + "x" * (1 << 20) + "\n" + REDUCE)

    def ranks() -> list[str]:
        reading = stack_files.read(paths, paths.read_plan(), 7)
        return [answer.process.report.env["RANK"] for answer in reading.answers if answer.main]

    assert sorted(ranks()) == ["0", "4"]
    owner = paths.directory.stat().st_uid + 1
    real = os.stat_result
    monkeypatch.setattr(
        Path, "stat", lambda *_, **__: real((0o40755, 0, 0, 0, owner, 0, 0, 0, 0, 0))
    )
    assert ranks() == []


def test_the_line_of_a_frame_is_read_from_the_runs_directory_only(tmp_path: Path) -> None:
    given = replace(decided(), directory=str(tmp_path / "project"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text("first\n  second\n")
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "project/link").symlink_to(tmp_path / "secret")
    lines = {
        (str(tmp_path / "project/train.py"), 2): "second",
        (str(tmp_path / "project/train.py"), 9): "",
        (str(tmp_path / "project/../secret"), 1): "",
        (str(tmp_path / "project/link"), 1): "",
        ("/proc/self/environ", 1): "",
    }
    for (file, number), text in lines.items():
        assert stack_files.source_of(given, Frame(file, number, "f")) == text


def test_another_users_run_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    asked: list[object] = []
    monkeypatch.setattr(stack_files, "ask", lambda *words: asked.append(words))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    done = CliRunner().invoke(command, ["train-0001"])
    assert isinstance(done.exception, ForbiddenError)
    assert asked == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "URG@40"),
        ({"array": "0-3"}, "URG@40"),
        ({"signal": "USR1@60"}, "USR1@60"),
        ({"requeue": True, "time": "1:00:00"}, "B:USR1@120"),
        ({"slurm": {"signal": "INT@9"}}, None),
        ({"interactive": True}, None),
    ],
)
def test_a_job_asks_by_itself_before_its_limit_where_the_signal_is_free(
    settings: dict[str, Any], expected: str | None
) -> None:
    directives = decided(**settings).directives
    values = [value for name, value in directives if name == "signal"]
    assert values == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("torch", "gpus", "names"),
    [
        ("2.13.0", 2, {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ("2.5.1", 2, {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ("1.13.1", 2, set()),
        ("2.13.0", 0, set()),
    ],
)  # fmt: skip
def test_nccls_flight_recorder_is_on_where_there_are_gpus(
    torch: str, gpus: int, names: set[str]
) -> None:
    given = make_case(
        {"nodes": "1", "ntasks_per_node": 2, "launcher": "torchrun", "gpus_per_node": gpus or None},
        manifest=replace(MANIFEST, frameworks={**MANIFEST.frameworks, "torch": torch}),
    )
    variables = decide(given).environment
    assert {name for name in variables if name.startswith(("TORCH_FR", "TORCH_NCCL"))} == names


class _Client:
    """Slurm, for which a job runs a while and then has ended."""

    def __init__(self, paths: store.Paths) -> None:
        self._states = iter(("RUNNING", "RUNNING", "RUNNING", "COMPLETED"))
        self._command = str(paths.script)

    def jobs(self, ids: list[int]) -> dict[int, JobState]:
        state = JobState(job_id=ids[0], state=next(self._states), nodes="nid001")
        state = replace(state, command=self._command)
        return {ids[0]: state}


def test_silence_is_reported_once_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = run_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    log = paths.logs / "7.log"
    log.write_text("begins\n")
    old = time.time() - 400
    os.utime(log, (old, old))
    monkeypatch.setattr(follow, "_pause", lambda _: 0.0)
    ended = Outcome(state="COMPLETED", exit_code=0, seconds=1.0)
    monkeypatch.setattr(follow, "finish", lambda *_: ended)
    client: Any = _Client(paths)
    assert shown.show(client, paths, paths.read_plan(), 7, as_json=False) == 0
    lines = capsys.readouterr().err.splitlines()
    silent = [line for line in lines if line.startswith("silent")]
    assert silent == [
        "silent     nothing was printed for 6 minutes; where the ranks are: toolkit stacks train-0001"
    ]


# With how many ranks each rank trains.


@pytest.mark.parametrize(
    ("worlds", "settings", "expected"),
    [
        ([4, 4, 4, 4], {}, ""),
        ([1, 1, 1, 1], {}, "4 ranks trained alone: world size 1 each"),
        ([2, 2, 2, 2], {}, "4 ranks trained in 2 groups of 2, which never met"),
        ([2, 2, 1, 1], {}, "4 ranks trained apart: 2 in worlds of 2, 2 in worlds of 1"),
        ([1], {}, ""),  # one rank alone may have a world of its own
        ([], {}, ""),
        ([1, 1], {"array": "0-3"}, ""),
        ([1, 1], {"launcher": "none"}, ""),
        ([8, 8], {}, ""),  # the others ended before they could note it
    ],
)
def test_ranks_that_never_met_are_counted(
    worlds: list[int], settings: dict[str, Any], expected: str
) -> None:
    assert apart_text(worlds, decided(**settings)) == expected


_FAKE = {
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "from torch.distributed.distributed_c10d import *\n",
    "torch/distributed/distributed_c10d.py": (
        "def get_world_size():\n    return 3\n"
        "def init_process_group(backend=None):\n    'Initialize.'\n    return backend\n"
    ),
}


def test_the_size_of_a_world_is_noted_and_the_module_is_as_it_was(tmp_path: Path) -> None:
    for name, text in _FAKE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = """\
    import inspect, torch.distributed as dist
    from torch.distributed import distributed_c10d as module
    assert dist.init_process_group("gloo") == "gloo"
    assert dist.init_process_group is module.init_process_group
    assert str(inspect.signature(dist.init_process_group)) == "(backend=None)"
    assert dist.init_process_group.__doc__ == "Initialize."
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert inspect.getsource(module).startswith("def get_world_size")
    """
    (text,) = ask(tmp_path, script)
    assert world_of(text) == 3
    assert world_of("world=" + "9" * 100_000) == 0


def test_explain_names_the_command_for_a_silent_run_and_shows_stacks_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = run_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    log = paths.logs / "7.log"
    log.write_text("begins\n")
    os.utime(log, (time.time() - 400,) * 2)
    for rank, stack in enumerate((REDUCE, REDUCE, NAMED)):
        (paths.reports / f"nid001-{rank}-0.stacks").write_text(head(rank, pid=rank) + stack)
    for name in ("0", "12", "x", "0.json"):
        (paths.reports / f"nccl_trace_rank_{name}").write_bytes(b"cos\nsystem\n(S'touch run'\ntR.")
    state = JobState(job_id=7, state="RUNNING", nodes="nid001")
    monkeypatch.setattr(status, "current", lambda *_: (state, None))
    shown_lines = CliRunner().invoke(explain_command, ["train-0001"]).output.splitlines()
    (stacks,) = [line for line in shown_lines if line.startswith("stacks")]
    assert "ranks 0, 1 wait in all_reduce (train.py:31); rank 2 is in read_shard" in stacks
    assert "rank 3 has written no file" in stacks
    assert any("torchfrtrace" in line and "ranks 0, 12:" in line for line in shown_lines)
    assert any(
        line.startswith("silent ") and "toolkit stacks train-0001" in line for line in shown_lines
    )
    assert not (tmp_path / "run").exists()
