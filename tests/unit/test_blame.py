"""Which rank failed first, from records of failing processes and the launcher's words; and what explain makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.explain.entries import entries_of
from toolkit.explain.explanation import explain
from toolkit.explain.gather import rules
from toolkit.explain.model import Evidence
from toolkit.launchers.failures import rank_failure
from toolkit.model.run import ErrorRecord, Failure, Report
from toolkit.runs import blame, error_records
from toolkit.runs.error_records import ErrorClass

PEER = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.12]:689"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def error(kind: str, message: str = "", **more: Any) -> ErrorRecord:
    place = {
        "file": "/scratch/user/train.py",
        "line": 12,
        "function": "step",
        "source": "x = table[key]",
    }
    return ErrorRecord(type=kind, message=message, **{**place, **more})


def report(rank: int | None, when: float, *errors: ErrorRecord, **more: Any) -> Report:
    env = {"RANK": str(rank), "SLURM_PROCID": str(rank)} if rank is not None else {}
    host = more.pop("host", f"nid{(rank or 0) // 2 + 1:03}")
    return Report(
        **{
            "kind": "exception",
            "time_ns": int(when * 1e9),
            "host": host,
            "pid": 100 + (rank or 0),
            "errors": errors,
            "env": env,
            **more,
        }
    )


LOST = error("RuntimeError", PEER, inner=TORCH)


def test_the_rank_with_an_error_of_its_own_failed_first_whatever_the_clocks_say() -> None:
    found = blame.first(
        "srun",
        [report(0, 1.0, LOST), report(1, 1.1, LOST), report(3, 2.0, error("KeyError", "'label'"))],
        [],
    )
    assert found is not None
    assert (found.rank, found.host, found.words, found.place) == (
        3,
        "nid002",
        "KeyError: 'label'",
        "train.py, line 12, in step",
    )
    assert found.text == "rank 3 on nid002: KeyError: 'label' (train.py, line 12, in step)"
    assert found.certainty == "certain"


def test_ranks_that_fail_alike_are_named_and_two_different_errors_are_only_likely() -> None:
    same = [
        report(rank, rank, error("ModuleNotFoundError", "No module named 'einops'"))
        for rank in range(4)
    ]
    found = blame.first("srun", same, [])
    assert found is not None
    assert (found.rank, found.alike, found.certainty) == (0, (1, 2, 3), "certain")
    found = blame.first(
        "srun",
        [
            report(2, 1.0, error("KeyError", "'a'")),
            report(1, 1.1, error("ValueError", "b", line=40)),
        ],
        [],
    )
    assert found is not None
    assert (found.rank, found.certainty) == (2, "likely")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((error("KeyError", "'a'"),), ErrorClass.OWN),
        ((LOST,), ErrorClass.CONSEQUENCE),
        ((error("RuntimeError", "step 3 failed", explicit=True), LOST), ErrorClass.CONSEQUENCE),
        (
            (error("RuntimeError", "step 3 failed", explicit=True), error("KeyError", "'a'")),
            ErrorClass.OWN,
        ),
        ((LOST, error("KeyError", "'a'")), ErrorClass.UNCLEAR),
        ((error("HorovodInternalError", "Horovod has been shut down"),), ErrorClass.CONSEQUENCE),
        (
            (
                error(
                    "DistStoreError",
                    "Timed out after 61 seconds waiting for clients. 3/4 clients joined.",
                ),
            ),
            ErrorClass.CONSEQUENCE,
        ),
        (
            (
                error(
                    "ConnectionResetError",
                    "[Errno 104] Connection reset by peer",
                    inner="/usr/lib/python3/ssl.py",
                ),
            ),
            ErrorClass.UNCLEAR,
        ),
        (
            (error("RuntimeError", "peer closed the connection", inner="/scratch/user/train.py"),),
            ErrorClass.UNCLEAR,
        ),
        (
            (
                error(
                    "RuntimeError",
                    "mat1 and mat2 shapes cannot be multiplied",
                    inner="/x/torch/nn/modules/linear.py",
                ),
            ),
            ErrorClass.OWN,
        ),
        ((error("SystemExit", "", signal="SIGTERM"),), ErrorClass.CONSEQUENCE),
        ((error("SystemExit", ""), LOST), ErrorClass.CONSEQUENCE),
        ((error("KeyboardInterrupt"),), ErrorClass.CONSEQUENCE),
        (
            (
                error(
                    "SignalException",
                    "got signal: 15",
                    module="torch.distributed.elastic.multiprocessing.api",
                ),
            ),
            ErrorClass.CONSEQUENCE,
        ),
        (
            (error("ProcessExitedException", "process 1 terminated with signal SIGTERM"),),
            ErrorClass.CONSEQUENCE,
        ),
        (
            (error("ProcessExitedException", "process 1 terminated with signal SIGSEGV"),),
            ErrorClass.OWN,
        ),
        (
            (
                error(
                    "DistNetworkError",
                    "The server socket has failed to listen: EADDRINUSE",
                    inner=TORCH,
                ),
            ),
            ErrorClass.OWN,
        ),
        (
            (
                error(
                    "RuntimeError",
                    "[gloo/transport/tcp/device.cc:84] Unable to find interface for: ib7",
                    inner="/x/train.py",
                ),
            ),
            ErrorClass.OWN,
        ),
        ((error("OutOfMemoryError", "CUDA out of memory", module="torch"),), ErrorClass.OWN),
        (
            (error("FileNotFoundError", "[Errno 2] No such file or directory: '/data/peer.bin'"),),
            ErrorClass.OWN,
        ),
    ],
)
def test_an_error_is_classified_by_its_whole_chain(
    errors: tuple[ErrorRecord, ...], expected: ErrorClass
) -> None:
    assert error_records.judge(report(0, 1.0, *errors)).kind is expected


WORKER = """Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/scratch/user/scans.py", line 31, in __getitem__
    return self.labels[name]
           ~~~~~~~~~~~^^^^^^
KeyError: 'scan-7'
"""


def test_an_error_of_a_worker_is_told_as_the_worker_raised_it() -> None:
    found = blame.first("torchrun", [report(1, 1.0, error("KeyError", WORKER))], [])
    assert found is not None
    assert (found.words, found.place, found.source) == (
        "KeyError: 'scan-7'",
        "scans.py, line 31, in __getitem__",
        "return self.labels[name]",
    )


@pytest.mark.parametrize(
    ("end", "words", "code"),
    [("exit code 3", "exit code 3", 3), ("signal SIGSEGV", "killed by signal 11 (SIGSEGV)", 139)],
)
def test_a_process_that_spawn_found_ended_is_told_with_its_rank(
    end: str, words: str, code: int
) -> None:
    env = {"NODE_RANK": "1", "NPROC_PER_NODE": "2"}
    parent = report(
        None,
        1.0,
        error("ProcessExitedException", f"process 0 terminated with {end}"),
        env=env,
        host="nid002",
    )
    found = blame.first("spawn", [parent], [])
    assert found is not None
    assert (found.rank, found.words, found.exit_code) == (2, words, code)
    assert found.text == f"rank 2 on nid002: {words}"


def test_a_consequence_that_a_child_passes_on_stays_one() -> None:
    frame = '  File "/scratch/user/a.py", line 3, in f\n    g()'
    text = f"\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n{frame}\nRuntimeError: {PEER}\n"
    assert (
        error_records.judge(report(0, 1.0, error("ProcessRaisedException", text))).kind
        is ErrorClass.CONSEQUENCE
    )


def test_a_rank_without_a_record_failed_first_if_all_records_are_consequences() -> None:
    reported = [
        rank_failure(143, 0, "nid001"),
        rank_failure(1, 1, "nid001"),
        rank_failure(139, 2, "nid002"),
    ]
    found = blame.first("srun", [report(0, 1.0, LOST), report(1, 1.0, LOST)], reported)
    assert found is not None
    assert (found.rank, found.exit_code, found.certainty) == (2, 139, "likely")
    assert blame.first("srun", [report(0, 1.0, LOST), report(1, 1.0, LOST)], reported[:2]) is None


def test_without_records_the_launcher_alone_tells() -> None:
    assert blame.first("srun", [], [rank_failure(3, 1, "nid001")]) is None


def test_what_starters_of_ranks_say_is_never_the_cause() -> None:
    agent = report(
        None, 0.5, error("ChildFailedError", "train.py FAILED"), program="/opt/venv/bin/torchrun"
    )
    driver = report(
        None,
        0.5,
        error("RuntimeError", "x"),
        program="/scratch/user/runs/x-0001/horovod_elastic.py",
    )
    assert blame.first("torchrun", [agent, driver], []) is None


def test_an_error_in_a_thread_counts_if_the_rank_ended_itself_for_it() -> None:
    thread = report(1, 1.0, error("KeyError", "'shard'"), kind="thread", thread="Thread-1")
    leave = report(1, 1.2, error("SystemExit"), kind="exit", code=1)
    found = blame.first("srun", [thread, leave], [])
    assert found is not None
    assert found.words == "in thread Thread-1: KeyError: 'shard'"
    harmless = report(0, 0.5, error("ValueError", "x"), kind="destructor", thread="A.__del__")
    found = blame.first("srun", [harmless, report(3, 2.0, error("KeyError", "'a'"))], [])
    assert found is not None
    assert found.rank == 3


def test_failures_that_were_survived_do_not_count() -> None:
    def start(rank: int, count: int, when: float, what: ErrorRecord) -> Report:
        env = {
            "RANK": str(rank),
            "TORCHELASTIC_RUN_ID": "7-0-0",
            "TORCHELASTIC_RESTART_COUNT": str(count),
        }
        return report(rank, when, what, env=env)

    found = blame.first(
        "torchrun",
        [
            start(0, 0, 1.0, error("KeyError", "'old'")),
            start(2, 1, 9.0, error("ValueError", "new")),
        ],
        [],
    )
    assert found is not None
    assert (found.rank, found.words) == (2, "ValueError: new")
    env = {"HOROVOD_RANK": "1"}
    survived = report(1, 1.0, error("KeyError", "'old'"), env=env, host="nid001", pid=5)
    last = report(1, 9.0, error("ValueError", "new"), env=env, host="nid001", pid=9)
    other = report(0, 1.5, error("OSError", "full"), env={"HOROVOD_RANK": "0"}, host="nid001")
    found = blame.first("horovod-elastic", [survived, other, last], [rank_failure(1, 1, "nid001")])
    assert found is not None
    assert found.words == "ValueError: new"
    # The driver names ranks as their processes end, which a rank that failed later may do first.
    earlier = report(0, 8.0, error("OSError", "gone"), env={"HOROVOD_RANK": "0"}, host="nid002")
    both = [rank_failure(1, 1, "nid001"), rank_failure(1, 0, "nid002")]
    found = blame.first("horovod-elastic", [survived, other, earlier, last], both)
    assert found is not None
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
        (
            "spawn",
            {"RANK": "1", "NODE_RANK": "1", "NPROC_PER_NODE": "2"},
            {"index": 1, "process": "SpawnProcess-2"},
            3,
        ),
        ("spawn", {"RANK": "1", "NODE_RANK": "1", "NPROC_PER_NODE": "2"}, {}, None),
        ("spawn", {"RANK": "1"}, {"group_rank": 2}, 2),
        ("srun", {"RANK": "٣"}, {}, None),
    ],
)
def test_the_rank_of_a_record_is_that_of_its_launcher(
    launcher: str, env: dict[str, str], more: dict[str, Any], rank: int | None
) -> None:
    assert blame.rank_of(report(None, 1.0, error("KeyError"), env=env, **more), launcher) == rank


def explained(found: Any, lines: list[tuple[str, str, int | None]]) -> Any:
    names = {"run": "train-0004", "run_path": "runs/train-0004", "image": "pytorch_cpu", "job": "7"}
    evidence = Evidence(
        entries_of(lines),
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


NOISE: list[tuple[str, str, int | None]] = [
    ("CUDA out of memory at batch 512, trying 256", "nid002", 3),
    ("RendezvousConnectionError: The connection to the C10d store has failed", "nid001", None),
    ("ModuleNotFoundError: No module named 'torch._dynamo'", "nid001", 0),
    ("Horovod has been shut down", "nid001", 0),
]


def test_the_place_of_a_broken_line_is_told_once() -> None:
    message = "invalid syntax (syn.py, line 1)"
    broken = error("SyntaxError", message, file="/home/user/syn.py", line=1, function="")
    found = blame.first("srun", [report(0, 1.0, broken)], [])
    assert found
    assert (found.words, found.place) == ("SyntaxError: invalid syntax (syn.py, line 1)", "")


def test_a_rank_that_ended_without_a_word_is_not_explained_by_the_others() -> None:
    """After os._exit the first rank is known, and what the others tell is a consequence."""
    lost = "Read error [10.77.0.12]:12198: Connection reset by peer gloo/transport/tcp/pair.cc:537"
    silent = Failure(exit_code=9, rank=3, host="nid002", text="rank 3 on nid002: exit code 9")
    found = blame.first("srun", [report(2, 1.0, error("RuntimeError", lost))], [silent])
    lines: list[tuple[str, str, int | None]] = [
        ("Traceback (most recent call last):", "nid002", 2),
        ('  File "/home/user/train.py", line 23, in main', "nid002", 2),
        (f"RuntimeError: [/x/{lost}", "nid002", 2),
        ("srun: error: nid002: task 3: Exited with exit code 9", "", None),
    ]
    said = explained(found, lines)
    how = "rank 3 on nid002 ended with exit code 9, without an error of Python"
    assert said.match.cause.startswith(how)
    assert said.match.sure == "likely"
    assert said.match.fix == ("toolkit logs --rank 3 train-0004 shows what it printed last",)


def test_a_result_that_another_rank_printed_for_all_is_the_cause() -> None:
    """All ranks end with 1 where the check of an exercise fails, and one prints the result."""
    lost = "Read error [10.77.0.12]:12198: Connection reset by peer gloo/transport/tcp/pair.cc:537"
    silent = Failure(exit_code=1, rank=3, host="nid002", text="rank 3 on nid002: exit code 1")
    first = blame.first("srun", [report(2, 1.0, error("RuntimeError", lost))], [silent])
    for words, rule in (
        ('"tolerance": 1e-09, "equal_to_one_process": false, "steps": 8}', "result-check"),
        ('"parameters_equal": true, "reference_difference": 0.0001203, "a": 1}', "result-check"),
        ('"parameters_equal": true, "reference_difference": 2.4e-05, "a": 1}', "exit-code"),
        ('"parameters_equal": true, "reference_difference": 0.0, "a": 1}', "exit-code"),
    ):
        assert explained(first, [(f'{{"loss": 4.1, {words}', "nid001", 0)]).match.rule == rule


def test_the_words_of_other_ranks_and_earlier_lines_are_no_cause() -> None:
    found = blame.first("srun", [report(3, 1.0, error("KeyError", "'label'"))], [])
    said = explained(found, NOISE)
    assert said.match is not None
    assert (said.match.rule, said.match.rank, said.match.sure) == ("python-exception", 3, "certain")
    assert said.match.cause == "KeyError: 'label' (train.py, line 12, in step)"
    assert said.match.fix == ("toolkit logs --rank 3 train-0004 shows the whole traceback",)
    assert (said.others, said.source) == ((), "x = table[key]")


def test_what_a_rank_warned_of_early_is_the_cause_of_its_failed_check() -> None:
    found = blame.first("srun", [report(3, 1.0, error("AssertionError", ""))], [])
    said = explained(found, [*NOISE, ("1 ranks found each other, not 4", "nid002", 3)])
    assert said.match.rule == "alone"
    assert (
        explained(found, [*NOISE, ("1 ranks found each other, not 4", "nid001", 1)]).match.rule
        == "python-exception"
    )


def test_memory_that_slurm_took_away_is_the_cause_of_what_a_rank_says_of_it() -> None:
    killed = report(
        1, 1.0, error("RuntimeError", "DataLoader worker (pid 71) is killed by signal: Killed.")
    )
    found = blame.first("srun", [killed], [])
    assert explained(found, NOISE).match.rule == "python-exception"
    slurm = (
        "slurmstepd-nid001: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        "nid001",
        0,
    )
    assert explained(found, [*NOISE, slurm]).match.rule == "memory"


def test_a_rule_that_knows_the_words_of_the_first_rank_gives_the_fix() -> None:
    found = blame.first(
        "srun", [report(2, 1.0, error("ModuleNotFoundError", "No module named 'einops'"))], []
    )
    said = explained(found, NOISE)
    assert (said.match.rule, said.match.rank) == ("module-missing", 2)
    assert "--from pytorch_cpu" in said.match.fix[0]


def test_a_script_that_ends_itself_is_not_explained_by_what_it_printed_before() -> None:
    leave = report(3, 1.0, error("SystemExit"), kind="exit", code=3)
    said = explained(blame.first("srun", [leave], []), NOISE)
    assert (said.match.rule, said.match.sure) == ("exit-code", "certain")
    assert (
        said.match.cause == "the script ended itself with exit code 3 (train.py, line 12, in step)"
    )
    asked = report(
        3,
        1.0,
        error("SystemExit", "train.py: error: unrecognized arguments: --epoch 3"),
        kind="exit",
        code=2,
        argparse=True,
    )
    said = explained(blame.first("srun", [asked], []), NOISE)
    assert (said.match.rule, said.match.rank) == ("arguments", 3)
    assert said.match.cause.startswith("train.py: error: unrecognized arguments: --epoch 3")


def test_what_a_rank_printed_before_it_crashed_is_found_above_the_stacks() -> None:
    agent = report(
        None, 2.0, error("ChildFailedError", "x FAILED"), program="/opt/venv/bin/torchrun"
    )
    found = blame.first("torchrun", [agent], [rank_failure(134, 2, "nid002")])
    stacks: list[tuple[str, str, int | None]] = [("Fatal Python error: Aborted", "nid002", 2)]
    stacks += [
        (f'  File "/opt/venv/lib/python3.11/site-packages/x.py", line {number} in f', "nid002", 2)
        for number in range(60)
    ]
    said = explained(
        found, [*NOISE, ("terminate called without an active exception", "nid002", 2), *stacks]
    )
    assert said.match.rule == "gloo-exit"


def test_where_a_rank_crashed_is_read_of_the_faulthandler() -> None:
    lines = [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x0 (most recent call first):",
    ]
    lines += [
        '  File "/opt/venv/lib/python3.11/site-packages/numpy/x.py", line 5 in f',
        '  File "/scratch/user/train.py", line 7 in step',
    ]
    assert error_records.place_of_crash(lines) == "train.py, line 7, in step"
    assert error_records.place_of_crash(lines[1:]) == ""


def test_no_secret_of_a_message_comes_out() -> None:
    found = blame.first(
        "srun",
        [
            report(
                0,
                1.0,
                error(
                    "OSError",
                    "cannot read https://me:hunter2@host/x",
                    source="get('https://me:hunter2@host')",
                ),
            )
        ],
        [],
    )
    assert "hunter2" not in str(found)
