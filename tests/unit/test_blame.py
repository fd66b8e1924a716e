"""Which rank failed first, from records of failing processes and the launcher's words; and what explain makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.samples import make_case
from toolkit import launchers
from toolkit.explain.explanation import explain
from toolkit.explain.gather import entries_of, rules
from toolkit.explain.match import Evidence
from toolkit.launchers.failures import rank_failure, rank_of, reader
from toolkit.model.run import Error, Failure, JobState, Process, Record
from toolkit.planning.plan import decide
from toolkit.runs import records
from toolkit.runs.logs import Line
from toolkit.runs.outcome import outcome
from toolkit.runs.run import Log

LIBRARIES = "/opt/venv/lib/python3.11/site-packages"
TORCH = f"{LIBRARIES}/torch/distributed/distributed_c10d.py"
PEER = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.12]:689"


def error(kind: str, message: str = "", **more: Any) -> Error:
    place = {"file": "/scratch/user/train.py", "line": 12, "function": "step"}
    return Error(type=kind, message=message, **{**place, "source": "x = table[key]", **more})


def record(*chain: Error, when: float = 0, **more: Any) -> Record:
    return Record(**{"kind": "exception", "time_ns": int(when * 1e9), "chain": chain, **more})


def process(rank: int | None, when: float, *failures: Error | Record, **more: Any) -> Process:
    """A process that failed ``when`` seconds after the start of time."""
    number = rank or 0
    known: dict[str, Any] = {"host": f"nid{number // 2 + 1:03}", "pid": 100 + number, "rank": rank}
    written = [
        record(failure, when=when) if isinstance(failure, Error) else failure
        for failure in failures
    ]
    return Process(**{**known, "time_ns": int(when * 1e9), "records": tuple(written), **more})


def first(launcher: str, *processes: Process, reported: tuple[Failure, ...] = ()) -> Failure:
    found = records.first(launcher, processes, reported)
    assert found is not None
    return found


# What launchers report.

_SPAWNED = "torch.multiprocessing.spawn.ProcessExitedException: process {} terminated with {}"
_SUMMARY = """\
Failures:
[1]:
  time      : 2026-11-25_13:36:45
  host      : nid001
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 180)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_13:36:45
  host      : nid001
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 181)
"""
_SURVIVED = ["elastic: rank 3 on nid002: killed by signal 9", "elastic: 2 ranks on nid001"]
_ENDED = [
    "elastic: rank 0 on nid002: killed by signal 9",
    "elastic: rank 1 on nid001: exit code 4",
    "elastic: failed: rank 1 on nid001: exit code 4",
]


@pytest.mark.parametrize(
    ("launcher", "logs", "expected"),
    [
        ("horovod", {"": ["srun: error: nid001: tasks 0-1: Terminated", "srun: error: nid002: task 2: Exited with exit code 3"]}, ["rank 2 on nid002: exit code 3", "rank 0 on nid001: killed by signal 15 (SIGTERM)", "rank 1 on nid001: killed by signal 15 (SIGTERM)"]),
        ("accelerate", {"nid002": _SUMMARY.format(code=7).splitlines()}, ["rank 1 on nid002: exit code 7", "rank 0 on nid002: killed by signal 15 (SIGTERM)"]),
        ("torchrun", {"": ["srun: error: nid001: task 0: Illegal instruction"]}, ["agent 0 on nid001: killed by signal 4 (SIGILL)"]),
        ("mpirun", {"": ["  Process name: [[20446,1],2]", "  Exit code:    3"]}, ["rank 2: exit code 3"]),
        ("mpirun", {"": ["Process name: [prterun-nid001-681@1,1]", "   Exit code:    1"]}, ["rank 1: exit code 1"]),
        ("mpirun", {"": ["prterun noticed that process rank 1 with PID 60 on node nid001 exited on", "signal 9"]}, ["rank 1 on nid001: killed by signal 9 (SIGKILL)"]),
        ("mpirun", {"": ["MPI_ABORT was invoked on rank 3 in communicator X", "with errorcode 7."]}, ["rank 3: exit code 7"]),
        ("mpirun", {"": ["all is well"], "nid001": ["Process name: [[1,1],2]", "Exit code: 3"]}, []),
        ("spawn", {"nid001": [_SPAWNED.format(0, "signal SIGTERM")], "nid002": [_SPAWNED.format(1, "exit code 3")]}, ["local rank 1 on nid002: exit code 3", "local rank 0 on nid001: killed by signal 15 (SIGTERM)"]),
        ("spawn", {"": ["srun: error: nid001: task 0: Exited with exit code 1"]}, ["script 0 on nid001: exit code 1"]),
        ("horovod-elastic", {"": [*_SURVIVED, *_ENDED]}, ["rank 1 on nid001: exit code 4", "rank 0 on nid002: killed by signal 9 (SIGKILL)"]),
        ("horovod-elastic", {"": _SURVIVED}, []),
    ],
)  # fmt: skip
def test_the_failures_of_a_launcher_are_read_the_first_one_first(launcher, logs, expected):
    found = reader(launchers.get(launcher)).of_logs(list(logs.items()))
    assert [failure.text for failure in found] == expected


NODES = {"NODE_RANK": "1", "NPROC_PER_NODE": "2"}
EXITED = "process 0 terminated with"


@pytest.mark.parametrize(
    ("launcher", "env", "more", "rank"),
    [
        ("torchrun", {"RANK": "3", "SLURM_PROCID": "1"}, {}, 3),
        ("torchrun", {"SLURM_PROCID": "1"}, {}, None),
        ("srun", {"RANK": "٣"}, {}, None),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "1"}, {}, 1),
        ("horovod-gloo", {"HOROVOD_RANK": "3", "SLURM_PROCID": "1"}, {}, 3),
        ("none", {"SLURM_PROCID": "1"}, {}, 1),
        ("spawn", {"RANK": "1", **NODES}, {"local_rank": 1, "name": "SpawnProcess-2"}, 3),
        ("spawn", {"RANK": "1", **NODES}, {}, None),
        ("spawn", NODES, {"records": (record(error("E", f"{EXITED} exit code 3")),)}, 2),
    ],
)
def test_the_rank_of_a_process_is_that_of_its_launcher(launcher, env, more, rank):
    assert rank_of(launchers.get(launcher), process(None, 1.0, env=env, **more)) == rank


# Which record is the cause.

LOST = error("RuntimeError", PEER, inner=TORCH)
KEY = error("KeyError", "'label'")
STEP = error("RuntimeError", "step 3 failed")
_LISTEN = "The server socket has failed to listen: EADDRINUSE"
_WAITING = "Timed out after 61 seconds waiting for clients. 3/4 clients joined."
_WORKER = f"""\

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/scratch/user/a.py", line 3, in f
    g()
RuntimeError: {PEER}
"""


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([LOST], "consequence"),
        ([STEP, LOST], "consequence"),
        ([STEP, KEY], "own"),
        ([LOST, KEY], "unclear"),
        ([error("DistStoreError", _WAITING)], "consequence"),
        ([error("ConnectionResetError", inner="/usr/ssl.py")], "unclear"),
        ([error("ConnectionResetError", inner=TORCH)], "consequence"),
        ([error("RuntimeError", "peer closed the connection", inner="/x/train.py")], "unclear"),
        ([error("RuntimeError", "peer closed the connection", inner=TORCH)], "consequence"),
        ([error("RuntimeError", "unknown", inner=TORCH)], "unclear"),
        ([error("SystemExit", signal="SIGTERM")], "consequence"),
        ([error("SystemExit"), LOST], "consequence"),
        *(
            ([error(name, "x")], "consequence")
            for name in ("KeyboardInterrupt", "SignalException", "HorovodInternalError")
        ),
        ([error("OSError", module="torch.distributed.elastic.x")], "consequence"),
        ([error("ProcessExitedException", f"{EXITED} signal SIGTERM")], "consequence"),
        ([error("ProcessExitedException", f"{EXITED} signal SIGSEGV")], "own"),
        ([error("ProcessRaisedException", _WORKER)], "consequence"),
        ([error("DistNetworkError", _LISTEN, inner=TORCH)], "own"),
        ([error("RuntimeError", "[gloo/transport/tcp/device.cc:84] Unable to find")], "own"),
        ([error("FileNotFoundError", "[Errno 2] No such file: '/data/peer.bin'")], "own"),
    ],
)
def test_the_origin_of_an_error_is_known_by_its_whole_chain(errors, expected):
    assert records.judge(record(*errors)).origin == expected


def test_the_rank_with_an_error_of_its_own_failed_first_whatever_the_clocks_say():
    found = first("srun", process(0, 1.0, LOST), process(1, 1.1, LOST), process(3, 2.0, KEY))
    assert found.text == "rank 3 on nid002: KeyError: 'label' (train.py, line 12, in step)"
    assert (found.source, found.certainty) == ("x = table[key]", "certain")
    same = first("srun", *(process(rank, rank, KEY) for rank in range(4)))
    assert (same.rank, same.alike, same.certainty) == (0, (1, 2, 3), "certain")
    two = first("srun", process(2, 1.0, KEY), process(1, 1.1, error("ValueError", line=40)))
    assert (two.rank, two.certainty) == (2, "likely")


_LOADER = f"""Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{LIBRARIES}/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/scratch/user/scans.py", line 31, in __getitem__
    return self.labels[name]
           ~~~~~~~~~~~^^^^^^
KeyError: 'scan-7'
"""


@pytest.mark.parametrize(
    ("cause", "more", "words", "code"),
    [
        (error("KeyError", _LOADER), {}, "KeyError: 'scan-7' (scans.py, line 31, in __getitem__)", 1),
        (error("SyntaxError", "invalid syntax (a.py, line 1)", file=""), {}, "SyntaxError: invalid syntax (a.py, line 1)", 1),
        (error("SystemExit"), {"kind": "exit", "code": 3}, "the script ended itself with exit code 3 (train.py, line 12, in step)", 3),
        (error("SystemExit", "no labels"), {"kind": "exit", "code": 1}, "no labels (train.py, line 12, in step)", 1),
        (error("ProcessExitedException", f"{EXITED} exit code 3"), {}, "exit code 3", 3),
        (error("ProcessExitedException", f"{EXITED} signal SIGSEGV"), {}, "killed by signal 11 (SIGSEGV)", 139),
    ],
)  # fmt: skip
def test_an_error_is_told_as_the_process_raised_it(cause, more, words, code):
    found = first("spawn", process(2, 1.0, record(cause, **more)))
    assert (found.text, found.exit_code) == (f"rank 2 on nid002: {words}", code)


def started(rank: int, count: int, when: float, what: Error) -> Process:
    env = {"TORCHELASTIC_RUN_ID": "7-0-0", "TORCHELASTIC_RESTART_COUNT": str(count)}
    return process(rank, when, what, env=env)


def elastic(rank: int, when: float, what: Error, host: str, pid: int) -> Process:
    return process(rank, when, what, env={"HOROVOD_RANK": str(rank)}, host=host, pid=pid)


NEW, FULL = error("ValueError", "new"), error("OSError", "full")
_BEFORE = [elastic(1, 1, KEY, "nid001", 5), elastic(0, 1.5, FULL, "nid001", 100)]
_LAST, _EARLIER = elastic(1, 9, NEW, "nid001", 9), elastic(0, 8, FULL, "nid002", 100)
_ONE, _OTHER = rank_failure(1, 1, "nid001"), rank_failure(1, 0, "nid002")
SILENT = rank_failure(9, 3, "nid002")
STOPPED = rank_failure(143, 0, "nid001")
_AGENT = process(None, 2.0, error("ChildFailedError", "x FAILED"), program="/bin/torchrun")


@pytest.mark.parametrize(
    ("launcher", "processes", "reported", "expected"),
    [
        pytest.param("torchrun", [started(0, 0, 1, KEY), started(2, 1, 9, NEW)], (), (2, "ValueError: new"), id="torchrun survived one"),
        pytest.param("horovod-elastic", [*_BEFORE, _LAST], [_ONE], (1, "ValueError: new"), id="Horovod survived one"),
        # The driver names ranks as their processes end, which a rank that failed later may do first.
        pytest.param("horovod-elastic", [*_BEFORE, _EARLIER, _LAST], [_ONE, _OTHER], (0, "OSError: full"), id="reported later"),
        pytest.param("srun", [process(2, 1, LOST)], [STOPPED, SILENT], (3, ""), id="a rank without a record"),
        pytest.param("srun", [process(3, 1, LOST)], [STOPPED, SILENT], None, id="a rank that lost a peer"),
        pytest.param("torchrun", [_AGENT], [STOPPED], (0, ""), id="a rank that sent SIGTERM to itself"),
        pytest.param("srun", [], [SILENT], None, id="no record"),
    ],
)  # fmt: skip
def test_what_was_survived_or_followed_does_not_count(launcher, processes, reported, expected):
    found = records.first(launcher, processes, reported)
    assert (found and (found.rank, found.words)) == expected


# What explain makes of it.

Lines = list[tuple[str, str, int | None]]
NOISE: Lines = [
    ("CUDA out of memory at batch 512, trying 256", "nid002", 3),
    ("RendezvousConnectionError: The connection to the C10d store has failed", "nid001", None),
    ("ModuleNotFoundError: No module named 'torch._dynamo'", "nid001", 0),
    ("Horovod has been shut down", "nid001", 0),
]
_READ: Lines = [
    ("RuntimeError: [/x/Read error [10.77.0.12]:12198: Connection reset by peer gloo/transport/tcp/pair.cc:537", "nid002", 2),
    ("srun: error: nid002: task 3: Exited with exit code 9", "", None),
]  # fmt: skip
_OOM = ("slurmstepd-nid001: error: Detected 1 oom_kill event in StepId=7.0.", "nid001", 0)
_ABORTED: Lines = [
    ("terminate called without an active exception", "nid002", 2),
    ("Fatal Python error: Aborted", "nid002", 2),
    *((f'  File "{LIBRARIES}/x.py", line {number} in f', "nid002", 2) for number in range(60)),
]
_ALONE = "1 ranks found each other, not 4"
_USAGE: Lines = [("train.py: error: unrecognized arguments: --epoch 3", "nid002", 3)]
_FAR = '{"parameters_equal": true, "reference_difference": 0.00012, "a": 1}'
_NEAR = '{"parameters_equal": true, "reference_difference": 2.4e-05, "a": 1}'
_KILLED = error("RuntimeError", "DataLoader worker (pid 71) is killed by signal: Killed.")
ENDED = process(3, 1.0, record(error("SystemExit"), kind="exit", code=3))
ARGPARSE = process(
    3, 1.0, record(error("SystemExit", inner="/usr/argparse.py"), kind="exit", code=2)
)


@pytest.mark.parametrize(
    ("failed", "reported", "lines", "rule", "sure", "cause"),
    [
        # The words of other ranks, and earlier lines, are no cause.
        (process(3, 1.0, KEY), [], NOISE, "python-exception", "certain", "KeyError: 'label' (train.py, line 12, in step)"),
        # After os._exit the first rank is known, and what the others tell is a consequence.
        (process(2, 1.0, LOST), [SILENT], _READ, "exit-code", "likely", "rank 3 on nid002 ended with exit code 9, without an error of Python"),
        # All ranks end with 1 where the check of an exercise fails, and one prints the result.
        (process(2, 1.0, LOST), [SILENT], [(_FAR, "nid001", 0)], "result-check", "", ""),
        (process(2, 1.0, LOST), [SILENT], [(_NEAR, "nid001", 0)], "exit-code", "", ""),
        # What a rank warned of early is the cause of its failed check.
        (process(3, 1.0, error("AssertionError")), [], [*NOISE, (_ALONE, "nid002", 3)], "alone", "", ""),
        (process(3, 1.0, error("AssertionError")), [], [*NOISE, (_ALONE, "nid001", 1)], "python-exception", "", ""),
        # Memory that Slurm took away is the cause of what a rank says of it.
        (process(1, 1.0, _KILLED), [], NOISE, "python-exception", "", ""),
        (process(1, 1.0, _KILLED), [], [*NOISE, _OOM], "memory", "", ""),
        (process(2, 1.0, error("ModuleNotFoundError", "No module named 'einops'")), [], NOISE, "module-missing", "certain", ""),
        # A script that ends itself is not explained by what it printed before, but by its usage.
        (ENDED, [], NOISE, "exit-code", "certain", "the script ended itself with exit code 3 (train.py, line 12, in step)"),
        (ARGPARSE, [], [*NOISE, *_USAGE], "arguments", "likely", _USAGE[0][0]),
        (ARGPARSE, [], [], "arguments", "certain", "the script ended itself with exit code 2"),
        # What a rank printed before it crashed is found above the stacks.
        (process(1, 1.0, LOST), [rank_failure(134, 2, "nid002")], [*NOISE, *_ABORTED], "gloo-exit", "", ""),
    ],
)  # fmt: skip
def test_the_first_rank_decides_what_is_explained(failed, reported, lines, rule, sure, cause):
    found = first("srun", failed, reported=reported)
    evidence = Evidence(
        entries_of(Line(*line) for line in lines),
        "FAILED",
        1,
        "srun",
        first_rank=found.rank,
        first_host=found.host or "",
        first_text=found.text,
        failure=found,
        names={"run": "train-0004", "run_path": "runs/train-0004", "image": "pytorch_cpu"},
    )
    match = explain(evidence, rules()).match
    assert match is not None
    assert match.rule == rule
    assert sure in ("", match.sure)
    assert match.cause.startswith(cause)
    assert match.rank == found.rank or rule in ("result-check", "memory")


def test_where_a_rank_crashed_is_read_of_the_faulthandler():
    lines = ["Fatal Python error: Segmentation fault", "", "Current thread 0x0:"]
    lines += [f'  File "{LIBRARIES}/numpy/x.py", line 5 in f']
    lines += ['  File "/scratch/user/train.py", line 7 in step']
    assert records.place_of_crash(lines) == "train.py, line 7, in step"
    assert records.place_of_crash(lines[1:]) == ""


def test_an_outcome_has_the_ranks_that_printed_nothing():
    plan = decide(make_case({"launcher": "srun"}))
    logs = [Log(Path(), task, f"nid00{task // 2 + 1}") for task in range(3)]
    lines = [Line("hello", "nid001", 1), Line("batch", "", None)]
    ranks = outcome(plan, JobState(job_id=7, state="COMPLETED"), lines, {}, [process(3, 0.0)], logs)
    assert ranks.ranks == {"nid001": (0, 1), "nid002": (2, 3)}
