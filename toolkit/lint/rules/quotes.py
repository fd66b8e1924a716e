"""Quotes that a word processor has bent."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script, outside_quotes

RULE = Rule(
    "quote",
    "error",
    "the shell does not know it as a quote: words are split, and what looks closed stays open",
    "a published guide's script for MultiWorkerMirroredStrategy",
)
_BENT = {"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'"}
# A value in one pair of them: any other may be an apostrophe, or belong to the value.
_PLAIN = r"[^\\\"'\u2018\u2019\u201c-\u201e]*"
_PAIR = re.compile(
    rf"{_PLAIN}[= ](?:[\u201c\u201e]{_PLAIN}[\u201c\u201d]|\u2018{_PLAIN}\u2019)\s*\Z"
)
_ANY = re.compile(f"[{''.join(_BENT)}]")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every line of a directive or command with such a quote; within straight quotes it may be text, unless those never close."""
    del context
    for command in script.commands:
        for offset, (line, plain) in enumerate(
            zip(command.text.split("\n"), command.plain.split("\n"), strict=True)
        ):
            number = command.line + offset
            if _ANY.search(plain) or (
                _ANY.search(line) and script.open_quote is not None and number >= script.open_quote
            ):
                yield _finding(script, number)
    for directive in script.directives:
        if _ANY.search(outside_quotes(directive.text)):
            yield _finding(script, directive.line)


def _finding(script: Script, number: int) -> Finding:
    line = script.lines[number - 1]
    mended = _ANY.sub(lambda match: _BENT[match[0]], line)
    bent = _ANY.search(line)
    is_clear = _PAIR.match(line) or not line.startswith("#SBATCH")
    fix = [Edit(line=number, text=mended)] if is_clear else []
    return RULE.at(number, f"{bent[0] if bent else ''} is not a quote of the shell", fix=fix)
