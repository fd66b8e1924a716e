"""The time to read what others wrote grows with its length and no faster, whatever is in it."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.explain_evidence import pasted
from tests.readers import READERS, check
from toolkit.explain.explanation import explain
from toolkit.explain.gather import rules
from toolkit.explain.match import Evidence
from toolkit.text import redacted

RULES = rules()
# What no pattern names but real logs have, and what has made patterns slow before.
GENERAL = (
    *("0123456789abcdef", "a", "7", " ", "\"'", "-", "/", ".", "([{", "12%\r", "\x1b[31m"),
    *("a://", "--token=", "token", "a=b;", "a@b", "postgres://u:p", "a://b@", "token:", "--a-"),
    *("sk-", "Bearer ", "api_key =", "x@y:z/", "<a ", '<a href="', "<!--", "&#9", "<base "),
)
LENGTH = 40_000  # characters
MOST = 0.02  # seconds of CPU; what takes less is fast
GROWTH = 3  # of the time when the text doubles: 2 is linear, 4 is quadratic


def seconds(function: Callable[[str], object], unit: str, length: int) -> float:
    """Return the CPU seconds for a text that repeats a unit up to a length."""
    text = (unit * (length // len(unit) + 1))[:length]
    begun = time.process_time()
    function(text)
    return time.process_time() - begun


def is_slow(function: Callable[[str], object], unit: str) -> bool:
    """Return whether the time grows faster than the text."""
    # From a long text an exponential pattern would not come back.
    for length in (24, 36, LENGTH // 50, LENGTH):
        taken = seconds(function, unit, length)
        if taken > 50 * MOST:
            return True
    if taken < MOST:
        return False
    # A busy machine lengthens single measurements: the shortest of a few are compared, and
    # measured again for as long as they do not look linear.
    short = long = float("inf")
    for _ in range(12):
        short = min(short, seconds(function, unit, LENGTH))
        long = min(long, seconds(function, unit, 2 * LENGTH))
        if long <= GROWTH * short:
            return False
    return True


@pytest.mark.parametrize("pattern", ["aaa.*b", "(?:a|aa)+b"])
def test_a_slow_pattern_is_found(pattern: str) -> None:
    assert is_slow(re.compile(pattern).search, "a")
    assert not is_slow(re.compile(r"a.{0,100}b|(?<!\w)\w+token").search, "a")


@pytest.mark.parametrize("name", RULES)
def test_every_pattern_of_every_rule_is_linear(name: str) -> None:
    """Also for lines of its own examples, over and over in one line."""
    rule = RULES[name]
    units = {
        *GENERAL,
        *rule.words,
        *"\n".join(one.get("log", "") for one in rule.examples).split("\n"),
    }
    for text in (*rule.signatures, *rule.also, *rule.without):
        search = re.compile(text).search
        slow = [unit for unit in units if unit and is_slow(search, unit)]
        assert not slow, f'{text}: write ".{{0,200}}" for ".*"'


@pytest.mark.parametrize("line", ["RuntimeError: boom", "Traceback (most recent call last):"])
def test_explaining_many_lines_is_linear(line: str) -> None:
    assert not is_slow(explained, f"0| {line}\n")


def explained(text: str) -> object:
    return explain(Evidence(pasted(text), "FAILED", 1), RULES)


@pytest.mark.parametrize("unit", GENERAL)
def test_redacting_and_explaining_are_linear(unit: str) -> None:
    assert not is_slow(redacted, unit)
    assert not is_slow(explained, unit)


@pytest.mark.parametrize("name", [name for name in READERS if name != "server"])
def test_readers_of_what_others_made_are_linear(name: str) -> None:
    def read(text: str) -> None:
        directory = Path(tempfile.mkdtemp())
        try:
            check(READERS[name], text.encode(), directory)
        finally:
            shutil.rmtree(directory)

    seeds = (seed.decode(errors="replace") for seed in READERS[name].seeds)
    assert [unit for unit in (*GENERAL, *seeds) if is_slow(read, unit)] == []


def test_a_cause_at_either_end_of_a_very_long_line_is_found() -> None:
    cause = "OSError: [Errno 28] No space left on device: '/scratch/x'"
    for text in (f"{cause} {'0123456789abcdef' * 4000}", f"{'0123456789abcdef' * 4000} {cause}"):
        found = explain(Evidence(pasted(text), "FAILED", 1), RULES)
        assert found.match
        assert found.match.rule == "disk-full"
        assert len(found.match.line) < 5000
        assert "of 1 line only the first 3,072 and the last 1,024 characters" in found.searched
