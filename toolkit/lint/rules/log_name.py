"""Patterns in the names of logs that do not mean what they seem to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Option, Script

RULE = Rule(
    "log-name", "warning", "the log gets another name than was meant", "sbatch(1), filename pattern"
)
_KNOWN = "%AabJjNnstux"  # %% is a percent sign
_PATTERN = re.compile(r"%(\d*)(.?)")
_LIKELY = {"i": "%j", "s": "%x"}


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Unknown patterns, and ``%s``, which is the step and not the job's name."""
    del context
    for name in ("output", "error"):
        for directive, option in script.options(name):
            wrong = next(
                (
                    letter
                    for _, letter in _PATTERN.findall(option.value or "")
                    if letter not in _KNOWN or letter == "s"
                ),
                None,
            )
            if wrong:
                yield _finding(directive.line, directive.text, option, wrong)


def _finding(line: int, text: str, option: Option, letter: str) -> Finding:
    what = (
        f"%{letter} is the step's number, of which a batch job has none"
        if letter == "s"
        else f"Slurm knows no pattern %{letter}"
    )
    likely = _LIKELY.get(letter)
    is_only = (
        text.count(f"%{letter}") == (option.value or "").count(f"%{letter}") and "%%" not in text
    )
    fix = [Edit(line=line, text=text.replace(f"%{letter}", likely))] if likely and is_only else []
    return RULE.at(
        line,
        f"{what} (in {option.value})",
        fix=fix,
        advice=f"likely meant: {likely}" if likely else "%x: job's name, %j: its number",
    )
