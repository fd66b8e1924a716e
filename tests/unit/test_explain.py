"""From a log to the cause: every rule recognises its own examples, no rule sees anything in a healthy log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.explain import Count, count, of_capture
from tests.explain_evidence import GOLDEN, captured
from tests.unit.samples import make_case
from toolkit.cli.explain import _evidence
from toolkit.cli.follow import lines_of
from toolkit.errors import UnknownRunError
from toolkit.explain import gather
from toolkit.explain.entries import entries_of, evidence_of, pasted
from toolkit.explain.explanation import explain
from toolkit.explain.gather import rules
from toolkit.explain.model import Evidence, Example, Rule
from toolkit.model.run import Failure, Outcome
from toolkit.planning.plan import decide
from toolkit.records.store import Paths
from toolkit.text import is_secret_name, redacted

RULES = rules()
EXAMPLES = [
    (name, number, example)
    for name, rule in RULES.items()
    for number, example in enumerate(rule.examples)
]


def evidence(example: Example) -> Evidence:
    return Evidence(
        *(pasted(example.log), example.state, example.exit_code),
        *(example.launcher, example.nodes_down),
        unrecorded=example.unrecorded,
    )


@pytest.mark.parametrize(
    ("name", "number", "example"),
    EXAMPLES,
    ids=[f"{name}-{number}" for name, number, _ in EXAMPLES],
)
def test_an_example_is_recognised(name: str, number: int, example: Example) -> None:
    del number
    found = explain(evidence(example), RULES)
    assert found.match is not None
    assert found.match.rule == name, found
    assert "{" not in found.match.cause
    assert "?" not in found.match.cause


def test_every_rule_has_an_example_a_source_and_a_fix() -> None:
    without = [name for name, rule in RULES.items() if not rule.examples and name != "alone"]
    assert without == []
    assert all(rule.fix and rule.source for rule in RULES.values())


@pytest.mark.parametrize("path", captured("captured"), ids=lambda path: path.stem)
def test_a_failure_that_was_provoked_is_named(path: Path) -> None:
    found = explain(of_capture(path), RULES)
    assert found.match is not None
    assert found.match.rule == path.name.split(".")[0]


@pytest.mark.parametrize("path", captured("healthy"), ids=lambda path: path.stem)
def test_a_healthy_log_is_left_alone(path: Path) -> None:
    found = explain(of_capture(path), RULES)
    assert found.match is None, found.match


FRIGHTENING = sorted((GOLDEN / "frightening").glob("*.log"))


@pytest.mark.parametrize("path", FRIGHTENING, ids=lambda path: path.stem)
def test_a_healthy_log_with_frightening_words_shows_no_failure(path: Path) -> None:
    found = explain(Evidence(pasted(path.read_text())), RULES)
    assert (found.first, found.match) == ("no failure found", None)
    assert "no failure found" in lines_of(found)[0]


@pytest.mark.parametrize("path", FRIGHTENING, ids=lambda path: path.stem)
def test_the_same_log_shows_a_failure_that_follows(path: Path) -> None:
    failing = (
        "Traceback (most recent call last):\n"
        + '  File "/scratch/user/train.py", line 9, in step\n'
        + "KeyError: 'weights'\n"
    )
    found = explain(Evidence(pasted(path.read_text() + failing)), RULES)
    assert found.match is not None
    assert (found.match.rule, found.match.cause) == (
        "python-exception",
        "KeyError: 'weights' (/scratch/user/train.py, line 9)",
    )


def test_there_are_enough_frightening_logs() -> None:
    assert len(FRIGHTENING) >= 40


def test_the_first_failing_rank_is_found_among_the_noise_of_the_others() -> None:
    noise = [
        ("RuntimeError: Connection closed by peer [10.77.0.11]:4321", f"nid{rank:03}", rank)
        for rank in range(64)
        if rank != 37
    ] * 40
    own = [
        ("Traceback (most recent call last):", "nid037", 37),
        ('  File "/scratch/u/train.py", line 9, in <module>', "nid037", 37),
        ('  File "/opt/venv/lib/python3.11/site-packages/x.py", line 1, in f', "nid037", 37),
        ("KeyError: 'weights'", "nid037", 37),
    ]
    middle = len(noise) // 2
    found = explain(
        Evidence(entries_of([*noise[:middle], *own, *noise[middle:]]), "FAILED", 1), RULES
    )
    assert found.match is not None
    assert (found.match.rule, found.match.rank, found.match.host) == (
        "python-exception",
        37,
        "nid037",
    )
    assert found.match.cause == "KeyError: 'weights' (/scratch/u/train.py, line 9)"
    assert found.first == "rank 37 on nid037: KeyError: 'weights'"


def test_what_slurm_says_of_the_first_rank_has_weight() -> None:
    lines = [
        ("Traceback (most recent call last):", "a", 1),
        ("ValueError: one", "a", 1),
        ("Traceback (most recent call last):", "b", 5),
    ]
    entries = entries_of([*lines, ("ValueError: five", "b", 5)])
    found = explain(
        Evidence(
            entries,
            "FAILED",
            1,
            first_rank=5,
            first_host="b",
            first_text="rank 5 on b: exit code 1",
        ),
        RULES,
    )
    assert found.match is not None
    assert found.match.line == "ValueError: five"
    assert found.first == "rank 5 on b: exit code 1"
    assert found.match.ranks == (1, 5)


def test_the_message_of_an_exception_comes_before_the_code_that_raised_it() -> None:
    text = """Traceback (most recent call last):
  File "/scratch/u/train.py", line 9, in <module>
    net = Net().to("cuda")
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 486, in _lazy_init
    raise AssertionError("Torch not compiled with CUDA enabled")
AssertionError: Torch not compiled with CUDA enabled"""
    found = explain(Evidence(pasted(text), "FAILED", 1), RULES)
    assert found.match is not None
    assert found.match.rule == "cpu-torch"
    assert found.match.line == "AssertionError: Torch not compiled with CUDA enabled"


def test_what_slurm_writes_into_the_log_of_a_task_blames_no_task() -> None:
    text = """2| loaded 256 MB
2| slurmstepd-nid002: error: StepId=15.0 exceeded memory limit (1576 > 1572), being killed
3| loaded 640 MB"""
    found = explain(Evidence(pasted(text), "FAILED", 1), RULES)
    assert found.match is not None
    assert found.match.rank is None
    assert found.match.cause == "the step on nid002 used more memory than the job was given"
    assert found.match.ranks == ()


def test_the_exception_below_in_user_code_is_named_with_the_users_own_line() -> None:
    found = explain(evidence(RULES["keras-user-code"].examples[0]), RULES)
    assert found.match is not None
    assert found.match.cause.startswith('ValueError: Input 0 of layer "sequential" is incompatible')
    assert found.match.cause.endswith("(/scratch/user/main.py, line 18)")


def test_an_unknown_failure_says_so_and_shows_the_earliest_lines() -> None:
    text = (
        "".join(f"{rank}| step {step}\n" for step in range(50) for rank in range(3))
        + "1| the flux capacitor failed\n1| more failed\n1| third failed\n"
    )
    found = explain(Evidence(pasted(text), "FAILED", 9), RULES)
    assert found.match is None
    assert found.suspicious == ("1| the flux capacitor failed", "1| more failed")


def test_conditions_hold() -> None:
    rule = Rule(
        summary="s",
        cause="c",
        fix=("f",),
        source="x",
        signatures=("boom",),
        launchers=("ray",),
        without=("fine",),
    )
    assert explain(Evidence(pasted("boom"), launcher="ray"), {"r": rule}).match is not None
    assert explain(Evidence(pasted("boom")), {"r": rule}).match is not None
    assert explain(Evidence(pasted("boom"), launcher="torchrun"), {"r": rule}).match is None
    assert explain(Evidence(pasted("boom\nfine"), launcher="ray"), {"r": rule}).match is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@mirror/simple", "https://****@mirror/simple"),
        ("NGC_API_KEY=abcdef123456", "NGC_API_KEY=****"),
        ("--token abcdefg x", "--token **** x"),
        ('"password": "hunter2"', '"password": "****"'),
        ("Authorization: Bearer abcdef.ghijkl", "Authorization: Bearer ****"),
        ("key nvapi-0123456789abcdef", "key ****"),
        ("tokens: 512 per second", "tokens: 512 per second"),
        ("loss 0.3, accuracy 0.9", "loss 0.3, accuracy 0.9"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_names_of_secrets() -> None:
    assert all(map(is_secret_name, ("NGC_API_KEY", "HF_TOKEN", "db_password", "MY_SECRET")))
    assert not any(
        map(is_secret_name, ("PATH", "OMP_NUM_THREADS", "KEYBOARD", "TOKENIZERS_PARALLELISM"))
    )


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        ("0| OSError: No space left on device: 'https://me:secret@host/x'", "disk-full"),
        ("0| the flux capacitor of https://me:secret@host failed", None),
    ],
)
def test_secrets_do_not_come_out_of_an_explanation(log: str, rule: str | None) -> None:
    """Neither out of the line that a rule matches nor out of one that is only shown."""
    found = explain(Evidence(pasted(log), "FAILED", 1), RULES)
    assert (found.match.rule if found.match else None) == rule
    assert "secret" not in str(found)
    assert "https://****@host" in str(found)


def test_each_set_of_logs_holds_its_bar() -> None:
    known, later, healthy = count(GOLDEN)
    assert (known.held, later.held, healthy.held) == (True, True, True)
    assert later.right + len(later.wrong) >= 30
    assert healthy.right >= 50


def test_an_empty_set_and_one_wrong_with_certainty_hold_no_bar() -> None:
    assert not Count(kind="later", right=0, wrong=()).held
    assert not Count(kind="later", right=30, wrong=("x: memory",), certain=1).held
    assert Count(kind="later", right=30, wrong=("x: memory",)).held


PLAIN = """epoch 3
slurmstepd: error: Detected 1 oom_kill event in StepId=88123.0. Some of the step tasks were killed.
srun: error: gpu07: task 5: Out Of Memory
"""


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        (PLAIN, "a process of the job used more memory", "batch script"),
        ("sbatch: error: invalid account", "sbatch: error: invalid account", "batch|"),
        (
            "Traceback (most recent call last):\n  File \"a.py\", line 2, in f\nKeyError: 'x'",
            "the log shows the whole traceback",
            "RUN",
        ),
        ("srun: error: nid1: task 2: Segmentation fault", "the log shows where", "RUN"),
    ],
)
def test_a_pasted_log_is_told_without_a_run(text: str, expected: str, wrong: str) -> None:
    """Nothing is known of who printed its lines, and no command can name its run."""
    said = "\n".join(lines_of(explain(Evidence(pasted(text)), rules())))
    assert expected in said
    assert wrong not in said


_SUMMARY = """\
train.py FAILED
Failures:
[1]:
  time      : 2026-11-21_10:00:02
  host      : nid001
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 70)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:00
  host      : nid002
  rank      : 5 (local_rank: 1)
  exitcode  : 3 (pid: 77)
srun: error: nid001: task 0: Exited with exit code 1"""
_AGAIN = "".join(f"epoch {number} loss 0.1\n" for number in range(9))


@pytest.mark.parametrize(
    ("text", "first", "reported"),
    [
        (
            "Traceback (most recent call last):\nKeyError: 'x'\n"
            "srun: error: nid2: task 3: Exited with exit code 1",
            "KeyError: 'x'",
            "task 3 on nid2: exit code 1",
        ),
        ("srun: error: n1: tasks 2-3: Exited with exit code 9", "task 2 on n1: exit code 9", ""),
        (_SUMMARY, "rank 5 on nid002: exit code 3", ""),
        ("0: " + _SUMMARY.replace("\n", "\n0: "), "rank 5 on nid002: exit code 3", ""),
        (
            "srun: error: n1: task 1: Exited with exit code 1\n"
            f"{_AGAIN}Traceback (most recent call last):\nKeyError: 'x'",
            "KeyError: 'x'",
            "",
        ),
    ],
)
def test_the_failed_rank_of_a_pasted_log_is_the_one_that_its_launcher_reports(
    text: str, first: str, reported: str
) -> None:
    said = explain(evidence_of(pasted(text)), rules())
    assert (said.first, said.reported) == (first, reported)
    assert [line.split(maxsplit=1)[1] for line in lines_of(said) if line.startswith("failed")] == (
        [reported] if reported else []
    )
    assert not any("batch|" in line for line in lines_of(said))


@pytest.mark.parametrize(
    "line",
    [
        "tests/test_errors.py::test_segfault XFAIL (Segmentation fault expected)",
        "tests/test_errors.py::test_oom[Out of memory handler] PASSED",
        "test_raises (tests.Errors) ... ok",
    ],
)
def test_a_test_that_ends_as_expected_is_no_failure(line: str) -> None:
    healthy = f"collected 2 items\n{line}\n===== 1 passed, 1 xfailed in 0.33s =====\n"
    assert explain(Evidence(pasted(healthy)), rules()).first == "no failure found"
    failed = f"collected 2 items\n{line}\nSegmentation fault (core dumped)\n"
    assert explain(Evidence(pasted(failed)), rules()).first != "no failure found"


def test_what_opencv_lacks_is_no_matter_of_nvidias_image() -> None:
    text = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
    found = explain(Evidence(pasted(text)), rules()).match
    assert found
    assert found.rule == "library-display"
    assert "opencv-python-headless" in found.fix[0]


def test_the_code_that_raises_an_error_is_not_the_error() -> None:
    text = """Traceback (most recent call last):
  File "main.py", line 61, in main
    model.load_state_dict(torch.load(path))
  File "/opt/lib/python3.10/site-packages/torch/nn/modules/module.py", line 2041, in load_state_dict
    raise RuntimeError('Error(s) in loading state_dict for {}:\\n\\t{}'.format(
RuntimeError: Error(s) in loading state_dict for ResNet:
\tsize mismatch for fc.weight"""
    found = explain(Evidence(pasted(text)), rules())
    assert found.match
    assert found.match.rule == "checkpoint"
    assert found.match.line.startswith("RuntimeError: Error(s) in loading state_dict for ResNet")


def test_a_step_that_took_too_much_memory_blames_no_rank() -> None:
    """Slurm kills all tasks of a step, and writes why into the log of the first one on the node."""
    text = "rank 0 on nid001: killed by signal 9 (SIGKILL)"
    failure = Failure(exit_code=137, rank=0, host="nid001", text=text)
    told = "the job used more memory on nid001 than it was given; more --cpus-per-task"
    outcome = Outcome(state="FAILED", exit_code=137, seconds=1, failure=failure, message=told)
    first = gather._first_text(outcome)
    limit = "exceeded memory limit (1236316160 > 1073741824)"
    assert first == "the job used more memory on nid001 than it was given"
    lines: list[tuple[str, str, int | None]] = [
        (f"slurmstepd-nid001: error: StepId=27.0 {limit}, being killed", "nid001", 0),
        ("srun: error: nid001: tasks 0-1: Killed", "", None),
    ]
    evidence = Evidence(entries_of(lines), "FAILED", 137, "srun")
    evidence = evidence._replace(first_rank=0, first_host="nid001", failure=failure)
    found = explain(evidence, rules()).match
    assert found
    assert found.cause == "the step on nid001 used more memory than the job was given"


def test_a_fix_names_a_run_as_the_current_directory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job id is found from everywhere, but the run's bare name is not."""
    run = tmp_path / "project" / "runs" / "train-0001"
    run.mkdir(parents=True)
    decided = decide(make_case({}))
    places = {tmp_path / "project": "train-0001", tmp_path: "project/runs/train-0001"}
    for directory, word in places.items():
        monkeypatch.chdir(directory)
        names = gather._names(Paths(run), decided, 7)
        assert names["run"] == word
        assert Path(names["run_path"]).resolve() == run


def test_a_run_without_an_image_is_not_told_to_look_into_one(tmp_path: Path) -> None:
    lines = entries_of([("exec: torchrun: not found", "nid001", None)])
    for runtime, told in (("apptainer", True), ("none", False)):
        decided = decide(make_case({}))
        container = replace(decided.container, runtime=runtime)
        names = gather._names(Paths(tmp_path), replace(decided, container=container), 7)
        found = explain(Evidence(lines, "FAILED", 127, names=names), rules()).match
        assert found
        assert found.rule == "command-missing"
        assert any("--image" in fix for fix in found.fix) is told
        assert len(found.fix) == 1 + told


def test_the_last_line_of_a_rank_that_left_only_an_exit_code_is_shown() -> None:
    """Python does not say that it ends by raise SystemExit("no data"), but prints the text."""
    failure = Failure(exit_code=1, rank=0, host="nid001", text="task 0 on nid001: exit code 1")
    lines: list[tuple[str, str, int | None]] = [
        ("no data", "nid001", 0),
        ("INFO:    Cleaning up image...", "nid001", 0),
        ("srun: error: nid001: task 0: Exited with exit code 1", "", None),
    ]
    evidence = Evidence(entries_of(lines), "FAILED", 1, "none", first_text=failure.text)
    evidence = evidence._replace(first_rank=0, first_host="nid001", failure=failure)
    said = lines_of(explain(evidence, rules()))
    assert any(line.split(None, 1) == ["last", "0| no data"] for line in said)


def test_a_huge_traceback_takes_the_memory_that_is_promised(tmp_path: Path) -> None:
    line = '  File "/x/y.py", line {0}, in f{0}\n    c()\n'
    log = tmp_path / "log"
    with log.open("w") as stream:
        stream.write("Traceback (most recent call last):\n")
        stream.writelines(line.format(number) for number in range(600_000))
        stream.write("ValueError: the last line\n")
    program = "import re; from toolkit.cli.explain import command\n"
    program += "command.main(['-'], standalone_mode=False)\n"
    # Not ru_maxrss, which is that of the process that was forked, too.
    program += (
        "print(int(re.search('VmHWM:.*?(\\\\d+)', open('/proc/self/status').read())[1]) >> 10)\n"
    )
    with log.open("rb") as stream:
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, stdin=stream, capture_output=True, text=True, check=True)
    assert "ValueError: the last line" in done.stdout
    assert int(done.stdout.splitlines()[-1]) < 200, "excerpt.MOST says so, in MB"


@pytest.mark.parametrize(("kind", "is_told"), [("file", True), ("pipe", True), ("null", False)])
def test_a_log_on_standard_input_that_is_not_read_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    is_told: bool,
) -> None:
    (tmp_path / "log").write_text("FATAL: boom\n")
    read, write = os.pipe()
    os.close(write)
    place = {"file": tmp_path / "log", "pipe": Path(f"/proc/self/fd/{read}")}
    with place.get(kind, Path("/dev/null")).open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        with pytest.raises(UnknownRunError):
            _evidence(None, tmp_path / "runs")
    assert ("toolkit explain -" in capsys.readouterr().err) is is_told
