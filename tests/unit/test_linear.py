"""The time to read a log grows with its length and no faster, whatever is in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolkit
from tests.explain_evidence import pasted
from tests.slow_patterns import GENERAL, Use, is_slow, slow_search, uses
from toolkit.explain.explanation import explain
from toolkit.explain.gather import rules
from toolkit.explain.model import Evidence
from toolkit.text import redacted

RULES = rules()
PIECES = (
    *"token secret a 9 :// @ : / = -- -".split(),
    '"',
    "'",
    " ",
    "\t",
    *". , [ sk-".split(),
    "Bearer ",
    "\r",
)

# Not linear, and harmless: what they read is short, or comes from no one else.
KNOWN = {
    "toolkit.images.build.apptainer.identity": "reads a definition that this tool has rendered",
    "toolkit.images.store.signatures": "reads the user's own key",
    "toolkit.images.host.host_mounts": "reads the configuration of apt",
    "toolkit.slurm.hostlist": "as many brackets are closed as are opened, which is checked before",
    "toolkit.runs.attempts": "reads one line, and only a line break makes it slow",
    "toolkit.bench": "reads what benchmarks of this tool print",
}


def use(pattern: str) -> Use:
    return Use("test", re.compile(pattern), "search")


@pytest.mark.parametrize("pattern", ["aaa.*b", r"\w*token", "(?:a|aa)+b"])
def test_a_slow_pattern_is_found(pattern: str) -> None:
    assert slow_search(use(pattern).pattern, use(pattern).on)


@pytest.mark.parametrize(
    "pattern",
    ["a.{0,100}b", r"(?<!\w)\w+token", "^a.*b", "error|failed", r"(?<![\w/])/[^\s:]{1,50}: denied"],
)
def test_a_linear_pattern_is_not_reported(pattern: str) -> None:
    assert slow_search(use(pattern).pattern, use(pattern).on) == ""


@pytest.mark.parametrize("name", RULES)
def test_every_pattern_of_every_rule_is_linear(name: str) -> None:
    rule = RULES[name]
    patterns = [re.compile(text) for text in (*rule.signatures, *rule.also, *rule.without)]
    found = {
        pattern.pattern: said
        for pattern in patterns
        if (said := slow_search(pattern, pattern.search))
    }
    assert not found, (
        'an unbounded repeat is searched for from every place of a line; write ".{0,200}" for ".*"'
    )


def test_every_other_pattern_is_linear() -> None:
    found = {}
    for one in uses(toolkit):
        if one.place.startswith(tuple(KNOWN)):
            continue
        said = slow_search(one.pattern, one.on)
        if said:
            found[one.place] = said
    assert not found


@pytest.mark.parametrize(
    "unit",
    [
        *GENERAL.values(),
        "postgres://u:p",
        "a://b@",
        "token:",
        "--a-",
        "sk-",
        "Bearer ",
        "api_key =",
        "x@y:z/",
    ],
)
def test_redaction_is_linear(unit: str) -> None:
    assert is_slow(redacted, unit) == ""


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join),
    st.sampled_from(["", "@", "=abcd", "\n"]),
)
def test_redaction_is_linear_in_anything(unit: str, end: str) -> None:
    assert is_slow(redacted, unit, end) == ""


def explained(text: str) -> object:
    return explain(Evidence(pasted(text), "FAILED", 1), RULES)


@pytest.mark.parametrize("unit", GENERAL.values())
def test_explaining_a_long_line_is_linear(unit: str) -> None:
    assert is_slow(explained, unit) == ""


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: boom",
        '  File "/x/train.py", line 3',
        "error: failed",
        "Traceback (most recent call last):",
    ],
)
def test_explaining_many_lines_is_linear(line: str) -> None:
    assert is_slow(explained, f"0| {line}\n", length=60_000) == ""


def test_a_cause_at_either_end_of_a_very_long_line_is_found() -> None:
    cause = "OSError: [Errno 28] No space left on device: '/scratch/x'"
    for text in (f"{cause} {'0123456789abcdef' * 4000}", f"{'0123456789abcdef' * 4000} {cause}"):
        found = explain(Evidence(pasted(text), "FAILED", 1), RULES)
        assert found.match
        assert found.match.rule == "disk-full"
        assert len(found.match.line) < 5000
        assert "of 1 line only the first 3,072 and the last 1,024 characters" in found.searched
