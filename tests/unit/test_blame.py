"""Which rank failed first, from records of failing processes and the launcher's words; and what explain makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.samples import make_case
from toolkit import launchers
from toolkit.explain.explanation import explain
from toolkit.explain.gather import entries_of, rules
from toolkit.explain.match import Evidence, Explanation
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


def process(rank: int | None, when: float, *errors: Error, **more: Any) -> Process:
    """A process that failed ``when`` seconds after the start of time."""
    of_record: dict[str, Any] = {
        name: more.pop(name) for name in ("kind", "code", "thread") if name in more
    }
    values: dict[str, Any] = {
        "kind": "exception",
        "time_ns": int(when * 1e9),
        "chain": errors,
        **of_record,
    }
    known: dict[str, Any] = {
        "time_ns": int(when * 1e9),
        "host": f"nid{(rank or 0) // 2 + 1:03}",
        "pid": 100 + (rank or 0),
        "rank": rank,
    }
    return Process(**{**known, "records": (Record(**values),), **more})


def first(launcher: str, *processes: Process, reported: tuple[Failure, ...] = ()) -> Failure:
    found = records.first(launcher, processes, reported)
    assert found is not None
    return found


LOST = error("RuntimeError", PEER, inner=TORCH)
KEY = error("KeyError", "'label'")


def test_the_rank_with_an_error_of_its_own_failed_first_whatever_the_clocks_say():
    found = first("srun", process(0, 1.0, LOST), process(1, 1.1, LOST), process(3, 2.0, KEY))
    place = "train.py, line 12, in step"
    assert (found.rank, found.host, found.words) == (3, "nid002", "KeyError: 'label'")
    assert (found.place, found.source, found.certainty) == (place, "x = table[key]", "certain")
    assert found.text == f"rank 3 on nid002: KeyError: 'label' ({place})"
    same = first("srun", *(process(rank, rank, KEY) for rank in range(4)))
    assert (same.rank, same.alike, same.certainty) == (0, (1, 2, 3), "certain")
    other = error("ValueError", "b", line=40)
    two = first("srun", process(2, 1.0, KEY), process(1, 1.1, other))
    assert (two.rank, two.certainty) == (2, "likely")


_LISTEN = "The server socket has failed to listen: EADDRINUSE"
_WAITING = "Timed out after 61 seconds waiting for clients. 3/4 clients joined."
_WORKER = f"""\

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/scratch/user/a.py", line 3, in f
    g()
RuntimeError: {PEER}
"""
ORIGINS: list[tuple[list[Error], str]] = [
    ([KEY], "own"),
    ([LOST], "consequence"),
    ([error("RuntimeError", "step 3 failed"), LOST], "consequence"),
    ([error("RuntimeError", "step 3 failed"), KEY], "own"),
    ([LOST, KEY], "unclear"),
    ([error("HorovodInternalError", "Horovod has been shut down")], "consequence"),
    ([error("DistStoreError", _WAITING)], "consequence"),
    ([error("ConnectionResetError", "Connection reset by peer", inner="/usr/ssl.py")], "unclear"),
    ([error("RuntimeError", "peer closed the connection", inner="/x/train.py")], "unclear"),
    ([error("RuntimeError", "mat1 and mat2 shapes", inner="/x/torch/nn/modules/linear.py")], "own"),
    ([error("SystemExit", signal="SIGTERM")], "consequence"),
    ([error("SystemExit"), LOST], "consequence"),
    ([error("KeyboardInterrupt")], "consequence"),
    ([error("SignalException", "15", module="torch.distributed.elastic.x")], "consequence"),
    ([error("ProcessExitedException", "process 1 terminated with signal SIGTERM")], "consequence"),
    ([error("ProcessExitedException", "process 1 terminated with signal SIGSEGV")], "own"),
    ([error("ProcessRaisedException", _WORKER)], "consequence"),
    ([error("DistNetworkError", _LISTEN, inner=TORCH)], "own"),
    ([error("RuntimeError", "[gloo/transport/tcp/device.cc:84] Unable to find interface")], "own"),
    ([error("OutOfMemoryError", "CUDA out of memory", module="torch")], "own"),
    ([error("FileNotFoundError", "[Errno 2] No such file or directory: '/data/peer.bin'")], "own"),
]


@pytest.mark.parametrize(("errors", "expected"), ORIGINS)
def test_the_origin_of_an_error_is_known_by_its_whole_chain(errors, expected):
    assert (
        records.judge(Record(kind="exception", time_ns=1, chain=tuple(errors))).origin == expected
    )


_LOADER = f"""Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{LIBRARIES}/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/scratch/user/scans.py", line 31, in __getitem__
    return self.labels[name]
           ~~~~~~~~~~~^^^^^^
KeyError: 'scan-7'
"""
_EXITED = "process 0 terminated with"


@pytest.mark.parametrize(
    ("cause", "more", "words", "code"),
    [
        (error("KeyError", _LOADER), {}, "KeyError: 'scan-7' (scans.py, line 31, in __getitem__)", 1),
        (error("SyntaxError", "invalid syntax (a.py, line 1)", file=""), {}, "SyntaxError: invalid syntax (a.py, line 1)", 1),
        (error("SystemExit"), {"kind": "exit", "code": 3}, "the script ended itself with exit code 3 (train.py, line 12, in step)", 3),
        (error("SystemExit", "no labels"), {"kind": "exit", "code": 1}, "no labels (train.py, line 12, in step)", 1),
        (error("ProcessExitedException", f"{_EXITED} exit code 3"), {}, "exit code 3", 3),
        (error("ProcessExitedException", f"{_EXITED} signal SIGSEGV"), {}, "killed by signal 11 (SIGSEGV)", 139),
    ],
)  # fmt: skip
def test_an_error_is_told_as_the_process_raised_it(cause, more, words, code):
    found = first("spawn", process(2, 1.0, cause, **more))
    assert (found.text, found.exit_code) == (f"rank 2 on nid002: {words}", code)


def test_failures_that_were_survived_do_not_count():
    def started(rank: int, count: int, when: float, what: Error) -> Process:
        env = {"TORCHELASTIC_RUN_ID": "7-0-0", "TORCHELASTIC_RESTART_COUNT": str(count)}
        return process(rank, when, what, env=env)

    new = error("ValueError", "new")
    found = first("torchrun", started(0, 0, 1.0, KEY), started(2, 1, 9.0, new))
    assert (found.rank, found.words) == (2, "ValueError: new")

    def elastic(rank: int, when: float, what: Error, host: str, pid: int) -> Process:
        env = {"HOROVOD_RANK": str(rank)}
        return process(rank, when, what, env=env, host=host, pid=pid)

    survived, last = (elastic(1, 1, KEY, "nid001", 5), elastic(1, 9, new, "nid001", 9))
    other = elastic(0, 1.5, error("OSError", "full"), "nid001", 100)
    one = rank_failure(1, 1, "nid001")
    assert first("horovod-elastic", survived, other, last, reported=(one,)).words == found.words
    # The driver names ranks as their processes end, which a rank that failed later may do first.
    earlier = elastic(0, 8.0, error("OSError", "gone"), "nid002", 100)
    both = (one, rank_failure(1, 0, "nid002"))
    found = first("horovod-elastic", survived, other, earlier, last, reported=both)
    assert (found.rank, found.host, found.words) == (0, "nid002", "OSError: gone")


@pytest.mark.parametrize(
    ("launcher", "env", "more", "rank"),
    [
        ("torchrun", {"RANK": "3", "SLURM_PROCID": "1"}, {}, 3),
        ("torchrun", {"SLURM_PROCID": "1"}, {}, None),
        ("srun", {"RANK": "2", "SLURM_PROCID": "2"}, {}, 2),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "1"}, {}, 1),
        ("horovod-gloo", {"HOROVOD_RANK": "3", "SLURM_PROCID": "3"}, {}, 3),
        ("none", {"SLURM_PROCID": "1"}, {}, 1),
        ("spawn", {"RANK": "1", "NODE_RANK": "1", "NPROC_PER_NODE": "2"}, {"local_rank": 1, "name": "SpawnProcess-2"}, 3),
        ("spawn", {"RANK": "1", "NODE_RANK": "1", "NPROC_PER_NODE": "2"}, {}, None),
        ("srun", {"RANK": "٣"}, {}, None),
    ],
)  # fmt: skip
def test_the_rank_of_a_process_is_that_of_its_launcher(launcher, env, more, rank):
    assert rank_of(launchers.get(launcher), process(None, 1.0, KEY, env=env, **more)) == rank
    parent = error("ProcessExitedException", f"{_EXITED} exit code 3")
    env = {"NODE_RANK": "1", "NPROC_PER_NODE": "2"}
    assert rank_of(launchers.get("spawn"), process(None, 1.0, parent, env=env)) == 2


Lines = list[tuple[str, str, int | None]]
NOISE: Lines = [
    ("CUDA out of memory at batch 512, trying 256", "nid002", 3),
    ("RendezvousConnectionError: The connection to the C10d store has failed", "nid001", None),
    ("ModuleNotFoundError: No module named 'torch._dynamo'", "nid001", 0),
    ("Horovod has been shut down", "nid001", 0),
]
SILENT = rank_failure(9, 3, "nid002")
_LOST = "Read error [10.77.0.12]:12198: Connection reset by peer gloo/transport/tcp/pair.cc:537"
_READ: Lines = [
    ("Traceback (most recent call last):", "nid002", 2),
    (f"RuntimeError: [/x/{_LOST}", "nid002", 2),
    ("srun: error: nid002: task 3: Exited with exit code 9", "", None),
]
_OOM = "slurmstepd-nid001: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
_STACKS: Lines = [(f'  File "{LIBRARIES}/x.py", line {number} in f', "nid002", 2) for number in range(60)]  # fmt: skip
_ABORTED: Lines = [
    ("terminate called without an active exception", "nid002", 2),
    ("Fatal Python error: Aborted", "nid002", 2),
    *_STACKS,
]
_ALONE = "1 ranks found each other, not 4"
_USAGE: Lines = [("train.py: error: unrecognized arguments: --epoch 3", "nid002", 3)]
_BROKEN: Lines = [('{"loss": 4.1, "equal_to_one_process": false, "steps": 8}', "nid001", 0)]
_FAR: Lines = [('{"parameters_equal": true, "reference_difference": 0.00012, "a": 1}', "nid001", 0)]
_NEAR: Lines = [('{"parameters_equal": true, "reference_difference": 2.4e-05, "a": 1}', "nid001", 0)]  # fmt: skip
_ARGPARSE = error("SystemExit", inner="/usr/lib/python3.11/argparse.py")
_KILLED = error("RuntimeError", "DataLoader worker (pid 71) is killed by signal: Killed.")
_AGENT = process(None, 2.0, error("ChildFailedError", "x FAILED"), program="/bin/torchrun")


@pytest.mark.parametrize(
    ("failed", "reported", "lines", "rule", "sure", "cause"),
    [
        # The words of other ranks, and earlier lines, are no cause.
        (process(3, 1.0, KEY), (), NOISE, "python-exception", "certain", "KeyError: 'label' (train.py, line 12, in step)"),
        # After os._exit the first rank is known, and what the others tell is a consequence.
        (process(2, 1.0, LOST), (SILENT,), _READ, "exit-code", "likely", "rank 3 on nid002 ended with exit code 9, without an error of Python"),
        # All ranks end with 1 where the check of an exercise fails, and one prints the result.
        (process(2, 1.0, LOST), (SILENT,), _BROKEN, "result-check", "", ""),
        (process(2, 1.0, LOST), (SILENT,), _FAR, "result-check", "", ""),
        (process(2, 1.0, LOST), (SILENT,), _NEAR, "exit-code", "", ""),
        # What a rank warned of early is the cause of its failed check.
        (process(3, 1.0, error("AssertionError")), (), [*NOISE, (_ALONE, "nid002", 3)], "alone", "", ""),
        (process(3, 1.0, error("AssertionError")), (), [*NOISE, (_ALONE, "nid001", 1)], "python-exception", "", ""),
        # Memory that Slurm took away is the cause of what a rank says of it.
        (process(1, 1.0, _KILLED), (), NOISE, "python-exception", "", ""),
        (process(1, 1.0, _KILLED), (), [*NOISE, (_OOM, "nid001", 0)], "memory", "", ""),
        (process(2, 1.0, error("ModuleNotFoundError", "No module named 'einops'")), (), NOISE, "module-missing", "", ""),
        # A script that ends itself is not explained by what it printed before, but by its usage.
        (process(3, 1.0, error("SystemExit"), kind="exit", code=3), (), NOISE, "exit-code", "certain", "the script ended itself with exit code 3 (train.py, line 12, in step)"),
        (process(3, 1.0, _ARGPARSE, kind="exit", code=2), (), [*NOISE, *_USAGE], "arguments", "likely", _USAGE[0][0]),
        (process(3, 1.0, _ARGPARSE, kind="exit", code=2), (), [], "arguments", "certain", "the script ended itself with exit code 2"),
        # What a rank printed before it crashed is found above the stacks.
        (_AGENT, (rank_failure(134, 2, "nid002"),), [*NOISE, *_ABORTED], "gloo-exit", "", ""),
        (process(1, 1.0, LOST), (rank_failure(134, 2, "nid002"),), [*NOISE, *_ABORTED], "gloo-exit", "", ""),
    ],
)  # fmt: skip
def test_the_first_rank_decides_what_is_explained(failed, reported, lines, rule, sure, cause):
    found = records.first("srun", [failed], reported) or reported[0]
    said = explained(found, lines)
    assert said.match is not None
    assert said.match.rule == rule
    assert sure in ("", said.match.sure)
    assert said.match.cause.startswith(cause)
    assert said.match.rank == found.rank or rule in ("result-check", "memory")


def explained(found: Failure, lines: Lines) -> Explanation:
    names = {"run": "train-0004", "run_path": "runs/train-0004", "image": "pytorch_cpu", "job": "7"}
    evidence = Evidence(
        entries_of(Line(*line) for line in lines),
        "FAILED",
        1,
        "srun",
        first_rank=found.rank,
        first_host=found.host or "",
        first_text=found.text,
        failure=found,
        names=names,
    )
    return explain(evidence, rules())


def test_where_a_rank_crashed_is_read_of_the_faulthandler():
    lines = ["Fatal Python error: Segmentation fault", "", "Current thread 0x0:"]
    lines += [f'  File "{LIBRARIES}/numpy/x.py", line 5 in f']
    lines += ['  File "/scratch/user/train.py", line 7 in step']
    assert records.place_of_crash(lines) == "train.py, line 7, in step"
    assert records.place_of_crash(lines[1:]) == ""


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
  exitcode  : -15 (pid: 181)  (SIGTERM)
""".splitlines()


def test_a_rank_that_sends_sigterm_to_itself_is_the_root_cause_that_torchrun_names():
    reported = tuple(reader(launchers.get("torchrun")).of_logs([("nid001", _SUMMARY)]))
    assert [failure.rank for failure in reported] == [1, 0]
    found = first("torchrun", _AGENT, reported=reported)
    assert (found.rank, found.exit_code, found.certainty) == (1, 143, "possible")
    stopped = rank_failure(143, 0, "nid001"), rank_failure(1, 3, "nid002")
    assert records.first("srun", [process(3, 1.0, LOST)], stopped) is None


def test_an_outcome_has_the_ranks_that_printed_nothing():
    plan = decide(make_case({"launcher": "srun"}))
    logs = [Log(Path(), task, f"nid00{task // 2 + 1}") for task in range(3)]
    lines = [Line("hello", "nid001", 1), Line("batch", "", None)]
    ranks = outcome(plan, JobState(job_id=7, state="COMPLETED"), lines, {}, [process(3, 0.0)], logs)
    assert ranks.ranks == {"nid001": (0, 1), "nid002": (2, 3)}
