"""From a log to the cause: every rule recognizes its examples, no rule sees anything in a healthy log."""

from __future__ import annotations

import re

import pytest

from benchmarks.explain import LOGS, count, of_capture
from toolkit.cli.follow import lines_of
from toolkit.explain import gather
from toolkit.explain.explanation import NO_FAILURE, explain
from toolkit.explain.match import Evidence, Rule, find
from toolkit.runs.logs import Line

RULES = gather.rules()
EXAMPLES = [example for rule in RULES.values() for example in rule.examples]
FRIGHTENING = sorted((LOGS / "frightening").glob("*.log"))


def pasted(text: str) -> tuple[Line, ...]:
    return gather.labelled(text.rstrip("\n").split("\n"))


def test_every_rule_has_an_example_a_source_and_a_fix():
    assert {name for name, rule in RULES.items() if not rule.examples} <= {"alone"}
    assert all(rule.fix and rule.source for rule in RULES.values())
    for example in EXAMPLES:
        assert example.keys() <= {"origin", "url", "log", *Evidence._fields}
        assert example["origin"] in ("captured", "published", "composed")
        assert (example["origin"] == "published") == bool(example.get("url"))


def test_a_line_that_a_signature_matches_has_a_word_of_its_rule():
    """Other lines are not tried; equal ones are tried once, and each is found where it is."""
    text = "\n".join(example.get("log", "") for example in EXAMPLES)
    entries = [*pasted(text), *pasted(text.upper()), *pasted(text)]
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


def test_each_set_of_logs_holds_its_bar():
    """All examples and captured logs are named, nine of ten later ones, and no healthy one."""
    known, later, healthy = count()
    assert (known.wrong, later.held, healthy.wrong) == ((), True, ())
    assert known.right >= 200
    assert healthy.right >= 50
    assert len(FRIGHTENING) >= 40
    for path in (LOGS / "captured").glob("*.json"):
        match = explain(of_capture(path), RULES).match
        assert match is not None
        assert not re.search(r"[{?]", match.cause), path


@pytest.mark.parametrize("path", FRIGHTENING, ids=lambda path: path.stem)
def test_a_failure_after_frightening_words_is_found(path):
    assert "no failure found" in lines_of(explain(gather.of_file(path), RULES))[0]
    failing = (
        'Traceback (most recent call last):\n  File "/u/train.py", line 9, in f\nKeyError: 1\n'
    )
    match = explain(Evidence(pasted(path.read_text() + failing)), RULES).match
    assert match is not None
    assert (match.rule, match.cause) == ("python-exception", "KeyError: 1 (/u/train.py, line 9)")


_NOISE = "".join(
    f"{rank}| RuntimeError: Connection closed by peer [10.77.0.11]:4321\n"
    for rank in [*range(37), *range(38, 64)] * 20
)
_OWN = """\
37| Traceback (most recent call last):
37|   File "/u/train.py", line 9, in <module>
37|   File "/opt/venv/lib/python3.11/site-packages/x.py", line 1, in f
37| KeyError: 'weights'
"""
_TWO = "".join(
    f"{rank}| Traceback (most recent call last):\n{rank}| ValueError: of {rank}\n"
    for rank in (1, 5)
)
_STATE = r"""Traceback (most recent call last):
  File "/opt/lib/python3.10/site-packages/torch/nn/modules/module.py", line 2041, in load_state_dict
    raise RuntimeError('Error(s) in loading state_dict for {}:\n\t{}'.format(
RuntimeError: Error(s) in loading state_dict for ResNet:
	size mismatch for fc.weight"""
_STEP = """2| loaded 256 MB
2| slurmstepd-nid002: error: StepId=15.0 exceeded memory limit (1576 > 1572), being killed
3| loaded 640 MB"""
_GL = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
_SECRET = "0| OSError: No space left on device: 'https://me:secret@host/x'"


@pytest.mark.parametrize(
    ("log", "facts", "expected"),
    [
        pytest.param(
            _NOISE + _OWN + _NOISE,
            {},
            {"rule": "python-exception", "rank": 37, "cause": "KeyError: 'weights' (/u/train.py, line 9)"},
            id="a rank among the noise of others, at the user's own line",
        ),
        pytest.param(_TWO, {"first_rank": 5}, {"line": "ValueError: of 5", "ranks": (1, 5)}, id="the rank that Slurm names has weight"),
        pytest.param(_STATE, {}, {"rule": "checkpoint", "line": _STATE.splitlines()[-2]}, id="a message comes before the code that raised it"),
        pytest.param(
            _STEP,
            {},
            {"rank": None, "cause": "the step on nid002 used more memory than the job was given", "ranks": ()},
            id="Slurm's words in the log of a task blame no task",
        ),
        pytest.param(_GL, {}, {"rule": "library-display"}, id="OpenCV is no matter of NVIDIA's image"),
        pytest.param(_SECRET, {}, {"line": "OSError: No space left on device: 'https://****@host/x'"}, id="no secret"),
    ],
)  # fmt: skip
def test_the_cause_is_chosen(log, facts, expected):
    match = explain(Evidence(pasted(log), "FAILED", 1, **facts), RULES).match
    assert {name: getattr(match, name) for name in expected} == expected


_FLUX = "the flux capacitor failed"
_STEPS = [f"{rank}| step {step}" for step in range(50) for rank in range(3)]


@pytest.mark.parametrize(
    ("entries", "first_rank", "shown"),
    [
        pytest.param(
            pasted("\n".join([*_STEPS, f"1| {_FLUX}", "1| more failed", "1| third failed"])),
            None,
            (f"1| {_FLUX}", "1| more failed"),
            id="the earliest",
        ),
        pytest.param(
            [Line(_FLUX, "n1", rank, element=2) for rank in (*range(12), 30)],
            30,
            tuple(f"2.{rank}| {_FLUX}" for rank in (30, *range(7))),
            id="those of the first rank, in an array too",
        ),
        pytest.param(
            [Line(f"error {number}", f"n{number % 2}", None) for number in range(20)],
            None,
            ("n0| error 0", "n0| error 2", "n1| error 1", "n1| error 3"),
            id="of nodes that alternate",
        ),
        pytest.param(pasted("0| https://me:secret@host failed"), None, ("0| https://****@host failed",), id="no secret"),
    ],
)  # fmt: skip
def test_an_unknown_failure_shows_lines_that_look_like_errors(entries, first_rank, shown):
    found = explain(Evidence(tuple(entries), "FAILED", 9, first_rank=first_rank), RULES)
    assert (found.match, found.suspicious) == (None, shown)


_FACTS = {"state": "TIMEOUT", "exit_code": 3, "nodes_down": {"n1": "DOWN"}}


@pytest.mark.parametrize(
    ("conditions", "facts", "is_matched"),
    [
        ({"signatures": ("boom",)}, {}, True),
        ({"signatures": ("bang",)}, {}, False),
        ({"signatures": ("boom",), "without": ("fine",)}, {}, False),
        ({"signatures": ("boom",), "also": ("fine",)}, {}, True),
        ({"signatures": ("boom",), "also": ("bang",)}, {}, False),
        ({"states": ("TIMEOUT",)}, _FACTS, True),
        ({"states": ("FAILED",)}, _FACTS, False),
        ({"states": ("FAILED",)}, {}, False),
        ({"signatures": ("boom",), "states": ("FAILED",)}, {}, True),
        ({"exit_codes": (3,)}, _FACTS, True),
        ({"exit_codes": (4,)}, _FACTS, False),
        ({"nodes_down": True}, _FACTS, True),
        ({"nodes_down": True}, {}, False),
    ],
)
def test_conditions_hold(conditions, facts, is_matched):
    """A fact that is unknown, as of a pasted log, rules nothing out that has a signature."""
    rule = Rule(summary="s", cause="c", fix=("f",), source="x", **conditions)
    found = explain(Evidence(pasted("error: boom\nfine"), **facts), {"r": rule})
    assert (found.match is not None) is is_matched


_KEY = "Traceback (most recent call last):\n  File \"a.py\", line 2, in f\nKeyError: 'x'"


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=8.0.", "a process of the job used more memory", "batch script"),
        ("sbatch: error: invalid account", "sbatch: error: invalid account", "batch|"),
        ("slurmstepd: error: *** STEP 13.0 ON n1 CANCELLED AT X DUE TO TIME LIMIT ***\nsrun: error: n2: task 1: Killed", "the job reached its time limit", "a rank was killed"),
        (_KEY, "the log shows the whole traceback", "RUN"),
    ],
)  # fmt: skip
def test_a_pasted_log_is_told_without_a_run(text, expected, wrong):
    """Nothing is known of who printed its lines, and no command can name its run."""
    said = "\n".join(lines_of(explain(Evidence(pasted(text)), RULES)))
    assert expected in said
    assert wrong not in said


_SUMMARY = """\
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


@pytest.mark.parametrize("element", [0, 1])
def test_an_element_of_an_array_does_not_go_on_for_another(element):
    error = Line("ValueError: the labels do not fit", "nid001", 0, element=0)
    after = [Line(f"epoch {number} loss 0.1", "nid001", 0, element=element) for number in range(8)]
    found = explain(Evidence((error, *after)), RULES)
    assert (found.first == NO_FAILURE) == (element == 0)
