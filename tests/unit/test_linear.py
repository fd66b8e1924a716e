"""Reading what others wrote takes time that grows with its length and no faster, whatever is in it.

No time is measured. What a linear reader does in a second takes a quadratic one so long that the
test's time is over, also on a busy machine.
"""

from __future__ import annotations

import re

import pytest

from tests.readers import READERS, check
from toolkit.explain.explanation import explain
from toolkit.explain.gather import of_lines, rules
from toolkit.text import redacted

RULES = rules()
# What no pattern names but real logs have, and what has made patterns slow before.
UNITS = (
    *("0123456789abcdef", "a", "7", " ", "\"'", "-", "/", ".", "([{", "12%\r", "\x1b[31m"),
    *("a://", "--token=", "token", "a=b;", "a@b", "postgres://u:p", "a://b@", "token:", "--a-"),
    *("sk-", "Bearer ", "api_key =", "x@y:z/", "<a ", '<a href="', "<!--", "&#9", "<base "),
    *("0| RuntimeError: boom\n", "0| Traceback (most recent call last):\n"),
)
LENGTH = 200_000  # characters
# Any character, or a group, without an end, and then something else: each try reads on to the end.
SLOW = re.compile(r"(?<!\\)\.[*+](?!\)*$)|(?<!\\)\)[*+]")


@pytest.mark.parametrize("name", RULES)
def test_no_pattern_of_a_rule_reads_on_without_an_end(name):
    rule = RULES[name]
    for pattern in (*rule.signatures, *rule.also, *rule.without):
        text = re.sub(r"\[[^]]+\]", "x", pattern)
        assert text.startswith("^") or not SLOW.search(text), f'{text}: write ".{{0,200}}"'


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["redacted", "explain", *sorted(READERS.keys() - {"server"})])
def test_a_reader_comes_to_an_end(name, tmp_path):
    for number, unit in enumerate(UNITS):
        text = unit * (LENGTH // len(unit))
        if name == "redacted":
            redacted(text)
        elif name == "explain":
            explain(of_lines(text.split("\n")), RULES)
        else:
            directory = tmp_path / str(number)
            directory.mkdir()
            check(READERS[name], text.encode(), directory)


@pytest.mark.parametrize("form", ["{cause} {long}", "{long} {cause}"])
def test_a_cause_at_either_end_of_a_very_long_line_is_found(form):
    cause = "OSError: [Errno 28] No space left on device: '/scratch/x'"
    line = form.format(cause=cause, long="0123456789abcdef" * 4000)
    match = explain(of_lines([line]), RULES).match
    assert match is not None
    assert (match.rule, len(match.line) < 5000) == ("disk-full", True)
