"""A line that a regular expression matches is among the few that are tried."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from toolkit.explain.candidates import Candidates, words_of
from toolkit.explain.gather import rules
from toolkit.explain.model import compiled

RULES = rules()
PATTERNS = sorted(
    {
        pattern
        for rule in RULES.values()
        for pattern in (*rule.signatures, *rule.also, *rule.without)
    }
)
LINES = sorted(
    {line for rule in RULES.values() for each in rule.examples for line in each.log.splitlines()}
)


def naive(lines: list[str], pattern: str) -> list[int]:
    return [number for number, line in enumerate(lines) if re.search(pattern, line)]


def found(lines: list[str], pattern: str) -> list[int]:
    return [number for number, _ in Candidates(lines).search([re.compile(pattern)])]


def test_every_signature_finds_the_lines_of_all_examples_that_it_matches() -> None:
    candidates = Candidates(LINES)
    for pattern in PATTERNS:
        numbers = [number for number, _ in candidates.search([compiled(pattern)])]
        assert numbers == naive(LINES, pattern), pattern


def test_a_line_that_many_ranks_print_is_found_wherever_it_is() -> None:
    lines = ["error: one", "fine", "error: two", "error: one", "", "error: one"]
    assert found(lines, "error: (one|two)") == [0, 2, 3, 5]
    assert found(lines, "error: one") == [0, 3, 5]


def test_no_signature_has_to_be_tried_on_every_line() -> None:
    assert [pattern for pattern in PATTERNS if not words_of(pattern)] == []


@given(some.lists(some.sampled_from(LINES), max_size=8), some.sampled_from(PATTERNS), some.data())
def test_letters_of_any_case_and_odd_ones_hide_no_line(
    lines: list[str], pattern: str, data: some.DataObject
) -> None:
    change = some.sampled_from([str.upper, str.lower, str.swapcase, str.title])
    odd = str.maketrans({"s": "\u017f", "k": "\u212a", "I": "\u0130", "i": "\u0131"})
    changed = [data.draw(change)(line) for line in lines]
    changed += [line.translate(odd) for line in lines]
    assert found(changed, pattern) == naive(changed, pattern)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"^KeyError: (?P<key>.*)$", ("keyerror: ",)),
        (r"(?:NCCL|Gloo) error", (" error",)),
        (r"(?:timed out|timeout)\b", ("time",)),
        (r"(?:never|seldom) seen", ("never", "seldom")),
        (r"(?i)Out of (?:memory)?", ("out of ",)),
        (r"(?:abc)?(?:defg){1,3}", ("defg",)),
        (r"\d+|some", ()),
        (r"x*(?!word)[a-z]{3,}", ()),
        ("a\nlong", ("long",)),
    ],
)
def test_the_words_of_a_pattern(pattern: str, words: tuple[str, ...]) -> None:
    assert words_of(pattern) == words
