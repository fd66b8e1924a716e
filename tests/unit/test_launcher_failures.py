"""The ranks that launchers report in their logs: the first one that failed."""

from __future__ import annotations

import pytest

from tests.unit.samples import first
from toolkit.launchers import get
from toolkit.launchers.failures import reader

_SRUN = (
    "srun: error: nid002: task 2: Exited with exit code 3",
    "srun: error: nid001: tasks 0-1: Terminated",
)
_SPAWNED = "torch.multiprocessing.spawn.ProcessExitedException: process {} terminated with {}"
_SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_20:15:40
  host      : nid002
  rank      : 3 (local_rank: 1)
  exitcode  : 7 (pid: 30721)
"""
_SURVIVED = ("elastic: rank 3 on nid002: killed by signal 9", "elastic: 2 ranks on nid001")
_ENDED = (
    "elastic: rank 1 on nid001: exit code 4",
    "elastic: failed: rank 1 on nid001: exit code 4",
)

# The launcher, its logs by host ("" for the batch shell's), and rank, host and code of the failure.
FAILURES = (
    ("horovod", {"": _SRUN}, (2, "nid002", 3)),
    ("accelerate", {"nid002": _SUMMARY.splitlines()}, (3, "nid002", 7)),
    ("mpirun", {"": ["  Process name: [[20446,1],2]", "  Exit code:    3"]}, (2, None, 3)),
    ("mpirun", {"": ["Process name: [prterun-nid001-681@1,1]", "   Exit code:    1"]}, (1, None, 1)),
    ("mpirun", {"": ["mpirun noticed that process rank 1 with PID 13 on node nid002 exited on signal 9"]}, (1, "nid002", 137)),
    ("mpirun", {"": ["prterun noticed that process rank 1 with PID 60 on node nid001 exited on", "signal 9"]}, (1, "nid001", 137)),
    ("mpirun", {"": ["MPI_ABORT was invoked on rank 3 in communicator X", "with errorcode 7."]}, (3, None, 7)),
    ("mpirun", {"": ["all is well"], "nid001": ["Process name: [[1,1],2]", "Exit code: 3"]}, None),
    ("spawn", {"nid001": [_SPAWNED.format(0, "signal SIGTERM")], "nid002": [_SPAWNED.format(1, "exit code 3")]}, (None, "nid002", 3)),
    ("spawn", {"nid001": [_SPAWNED.format(0, "signal SIGKILL")]}, (None, "nid001", 137)),
    ("spawn", {"": ["srun: error: nid001: task 0: Exited with exit code 1"]}, (0, "nid001", 1)),
    ("horovod-elastic", {"": [*_SURVIVED, *_ENDED]}, (1, "nid001", 4)),
    ("horovod-elastic", {"": _SURVIVED}, None),
)  # fmt: skip


@pytest.mark.parametrize(("launcher", "logs", "expected"), FAILURES)
def test_the_first_failure_of_a_launcher(launcher, logs, expected):
    failure = first(reader(get(launcher)).of_logs(list(logs.items())))
    told = (failure.rank, failure.host, failure.exit_code) if failure else None
    assert told == expected


def test_a_failure_is_named_by_what_is_known_of_it():
    spawned = first(reader(get("spawn")).of_logs([("nid002", [_SPAWNED.format(1, "exit code 3")])]))
    agent = first(
        reader(get("spawn")).of_logs(
            [("", ["srun: error: nid001: task 0: Exited with exit code 1"])]
        )
    )
    assert [failure.text for failure in (spawned, agent) if failure] == [
        "local rank 1 on nid002: exit code 3",
        "script 0 on nid001: exit code 1",
    ]
