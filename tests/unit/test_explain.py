"""From a log to the cause: every rule recognizes its examples, no rule sees anything in a healthy log."""

from __future__ import annotations

import re

import pytest

from benchmarks.explain import Count, count, of_capture
from tests.explain_evidence import GOLDEN, captured, pasted
from toolkit.cli.follow import lines_of
from toolkit.explain import gather
from toolkit.explain.explanation import NO_FAILURE, explain
from toolkit.explain.match import Evidence, Explanation, Match, Rule, find
from toolkit.runs.logs import Line

RULES = gather.rules()
EXAMPLES = [example for rule in RULES.values() for example in rule.examples]
FRIGHTENING = sorted((GOLDEN / "frightening").glob("*.log"))


def match_of(found: Explanation) -> Match:
    assert found.match is not None, found
    return found.match


def test_every_rule_has_an_example_a_source_and_a_fix():
    assert {name for name, rule in RULES.items() if not rule.examples} <= {"alone"}
    assert all(rule.fix and rule.source for rule in RULES.values())
    for example in EXAMPLES:
        assert example.keys() <= {"origin", "url", "log", *Evidence._fields}
        assert example["origin"] in ("captured", "published", "composed")
        assert (example["origin"] == "published") == bool(example.get("url"))


def test_a_line_that_a_signature_matches_has_a_word_of_its_rule():
    """Other lines are not tried; equal ones are tried once, and each is found where it is."""
    logs = [example.get("log", "") for example in EXAMPLES]
    logs += [path.read_text(errors="replace") for path in (GOLDEN / "later").glob("*.log")]
    entries = [*pasted("\n".join(logs)), *pasted("\n".join(logs).upper())]
    hits = find(entries, RULES)
    for name, rule in RULES.items():
        assert bool(rule.words) == bool(rule.signatures), name
        assert [word for word in rule.words if len(word) < 3 or word != word.lower()] == []
        signatures = [re.compile(pattern) for pattern in rule.signatures]
        assert [hit.position for hit in hits[name]] == [
            position
            for position, entry in enumerate(entries)
            if any(signature.search(entry.text) for signature in signatures)
        ], name


@pytest.mark.parametrize("path", FRIGHTENING, ids=lambda path: path.stem)
def test_frightening_words_are_no_failure_but_one_that_follows_them_is(path):
    found = explain(Evidence(pasted(path.read_text())), RULES)
    assert (found.first, found.match) == ("no failure found", None)
    assert "no failure found" in lines_of(found)[0]
    failing = """Traceback (most recent call last):
  File "/scratch/user/train.py", line 9, in step
KeyError: 'weights'
"""
    match = match_of(explain(Evidence(pasted(path.read_text() + failing)), RULES))
    assert match.rule == "python-exception"
    assert match.cause == "KeyError: 'weights' (/scratch/user/train.py, line 9)"


def test_each_set_of_logs_holds_its_bar():
    """All examples and captured logs are named, nine of ten later ones, and no healthy one."""
    known, later, healthy = count()
    assert (known.wrong, later.held, healthy.wrong) == ((), True, ())
    causes = [match_of(explain(of_capture(path), RULES)).cause for path in captured("captured")]
    assert not any(re.search(r"[{?]", cause) for cause in causes)
    assert known.right >= 230
    assert later.right + len(later.wrong) >= 30
    assert healthy.right >= 50
    assert len(FRIGHTENING) >= 40
    assert not Count(kind="later", right=0, wrong=()).held
    assert not Count(kind="later", right=30, wrong=("x: memory",), certain=1).held
    assert Count(kind="later", right=30, wrong=("x: memory",)).held


_NOISE = [
    (f"{rank}| RuntimeError: Connection closed by peer [10.77.0.11]:4321")
    for rank in range(64)
    if rank != 37
] * 20
_OWN = """37| Traceback (most recent call last):
37|   File "/scratch/u/train.py", line 9, in <module>
37|   File "/opt/venv/lib/python3.11/site-packages/x.py", line 1, in f
37| KeyError: 'weights'"""
_TWO = """1| Traceback (most recent call last):
1| ValueError: one
5| Traceback (most recent call last):
5| ValueError: five"""
_CUDA = """Traceback (most recent call last):
  File "/scratch/u/train.py", line 9, in <module>
    net = Net().to("cuda")
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 486, in _lazy_init
    raise AssertionError("Torch not compiled with CUDA enabled")
AssertionError: Torch not compiled with CUDA enabled"""
_STEP = """2| loaded 256 MB
2| slurmstepd-nid002: error: StepId=15.0 exceeded memory limit (1576 > 1572), being killed
3| loaded 640 MB"""
_STATE = r"""Traceback (most recent call last):
  File "main.py", line 61, in main
    model.load_state_dict(torch.load(path))
  File "/opt/lib/python3.10/site-packages/torch/nn/modules/module.py", line 2041, in load_state_dict
    raise RuntimeError('Error(s) in loading state_dict for {}:\n\t{}'.format(
RuntimeError: Error(s) in loading state_dict for ResNet:
	size mismatch for fc.weight"""
_GL = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("log", "facts", "expected"),
    [
        # The first failing rank among the noise of the others, at the user's own line.
        (
            "\n".join([*_NOISE, _OWN, *_NOISE]),
            {},
            {"rule": "python-exception", "rank": 37, "cause": "KeyError: 'weights' (/scratch/u/train.py, line 9)"},
        ),
        # What Slurm says of the first rank has weight.
        (_TWO, {"first_rank": 5}, {"line": "ValueError: five", "ranks": (1, 5)}),
        # The message of an exception comes before the code that raised it.
        (_CUDA, {}, {"rule": "cpu-torch", "line": _CUDA.splitlines()[-1]}),
        (_STATE, {}, {"rule": "checkpoint", "line": _STATE.splitlines()[-2]}),
        # What Slurm writes into the log of a task blames no task.
        (_STEP, {}, {"rank": None, "cause": "the step on nid002 used more memory than the job was given", "ranks": ()}),
        # What OpenCV lacks is no matter of NVIDIA's image.
        (_GL, {}, {"rule": "library-display"}),
    ],
)  # fmt: skip
def test_the_cause_is_chosen(log, facts, expected):
    match = match_of(explain(Evidence(pasted(log), "FAILED", 1, **facts), RULES))
    assert {name: getattr(match, name) for name in expected} == expected


def test_an_unknown_failure_says_so_and_shows_the_earliest_lines():
    steps = "".join(f"{rank}| step {step}\n" for step in range(50) for rank in range(3))
    text = steps + "1| the flux capacitor failed\n1| more failed\n1| third failed\n"
    found = explain(Evidence(pasted(text), "FAILED", 9), RULES)
    assert found.match is None
    assert found.suspicious == ("1| the flux capacitor failed", "1| more failed")


def test_the_lines_of_the_rank_that_failed_first_come_first_in_an_array_too():
    lines = [Line("the flux capacitor failed", "n1", rank, element=2) for rank in (*range(12), 30)]
    found = explain(Evidence(tuple(lines), "FAILED", 9, first_rank=30), RULES)
    assert found.suspicious[:2] == tuple(f"{label}| {lines[0].text}" for label in ("2.30", "2.0"))
    assert len(found.suspicious) == 8


def test_lines_of_nodes_that_alternate_are_shown_for_each_node():
    hosts = [f"n{number % 5}" for number in range(20)]
    lines = [Line(f"error {count}: the flux", host, None) for count, host in enumerate(hosts)]
    shown = explain(Evidence(tuple(lines), "FAILED", 9), RULES).suspicious
    assert [text[:2] for text in shown[:4]] == ["n0", "n0", "n1", "n1"]


@pytest.mark.parametrize(("log", "is_matched"), [("boom", True), ("boom\nfine", False)])
def test_conditions_hold(log, is_matched):
    rule = Rule(
        summary="s",
        cause="c",
        fix=("f",),
        source="x",
        signatures=("boom",),
        without=("fine",),
    )
    found = explain(Evidence(pasted(log)), {"r": rule})
    assert (found.match is not None) is is_matched


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        ("0| OSError: No space left on device: 'https://me:secret@host/x'", "disk-full"),
        ("0| the flux capacitor of https://me:secret@host failed", None),
    ],
)
def test_secrets_do_not_come_out_of_an_explanation(log, rule):
    """Neither out of the line that a rule matches nor out of one that is only shown."""
    found = explain(Evidence(pasted(log), "FAILED", 1), RULES)
    assert (found.match.rule if found.match else None) == rule
    assert "secret" not in str(found)
    assert "https://****@host" in str(found)


_OOM = """epoch 3
slurmstepd: error: Detected 1 oom_kill event in StepId=88123.0. Some of the step tasks were killed.
srun: error: gpu07: task 5: Out Of Memory
"""
_LIMIT = """slurmstepd: error: *** STEP 13.0 ON nid001 CANCELLED AT 2026-11-25T16:08:21 DUE TO TIME LIMIT ***
srun: error: nid002: task 1: Killed
"""
_KEY = "Traceback (most recent call last):\n  File \"a.py\", line 2, in f\nKeyError: 'x'"


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        (_OOM, "a process of the job used more memory", "batch script"),
        ("sbatch: error: invalid account", "sbatch: error: invalid account", "batch|"),
        (_LIMIT, "the job reached its time limit", "a rank was killed"),
        (_KEY, "the log shows the whole traceback", "RUN"),
        ("srun: error: nid1: task 2: Segmentation fault", "the log shows where", "RUN"),
    ],
)
def test_a_pasted_log_is_told_without_a_run(text, expected, wrong):
    """Nothing is known of who printed its lines, and no command can name its run."""
    said = "\n".join(lines_of(explain(Evidence(pasted(text)), RULES)))
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
_EXITED = "srun: error: n1: task 1: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("text", "first", "reported"),
    [
        (f"{_KEY}\n{_EXITED}", "KeyError: 'x'", "task 1 on n1: exit code 1"),
        ("srun: error: n1: tasks 2-3: Exited with exit code 9", "task 2 on n1: exit code 9", ""),
        (_SUMMARY, "rank 5 on nid002: exit code 3", ""),
        ("0: " + _SUMMARY.replace("\n", "\n0: "), "rank 5 on nid002: exit code 3", ""),
        (f"{_EXITED}{_AGAIN}{_KEY}", "KeyError: 'x'", ""),
    ],
)
def test_the_failed_rank_of_a_pasted_log_is_the_one_that_its_launcher_reports(
    text, first, reported
):
    found = explain(gather.of_lines(text.split("\n")), RULES)
    assert (found.first, found.reported) == (first, reported)
    failed = [line.split(maxsplit=1)[1] for line in lines_of(found) if line.startswith("failed")]
    assert failed == ([reported] if reported else [])


def test_an_element_of_an_array_does_not_go_on_for_another():
    error = Line("ValueError: the labels do not fit", "nid001", 0, element=0)
    other = [Line(f"epoch {number} loss 0.1", "nid001", 0, element=1) for number in range(8)]
    assert explain(Evidence((error, *other)), gather.rules()).first != NO_FAILURE
    own = [line._replace(element=0) for line in other]
    assert explain(Evidence((error, *own)), gather.rules()).first == NO_FAILURE
