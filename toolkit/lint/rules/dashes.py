"""Dashes that a word processor has put in place of the hyphens of an option."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script, outside_quotes

RULE = Rule(
    "dash",
    "error",
    "sbatch and srun take such a word for something else than an option: they refuse it, or leave it out without a word",
    "12 such lines in a published guide of a GPU cluster; sbatch 22.05: Invalid directive found in batch script",
)
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_OPTION = re.compile(rf"(?<!\S)(?P<dash>-?[{_DASHES}]+-?)(?P<name>[A-Za-z][\w-]*)")
_BENT = re.compile("[\u2018\u2019\u201c-\u201e]")
_NAMES = {
    "–": "an en dash",
    "—": "an em dash",
    "−": "a minus sign",
    "‐": "a typographic hyphen",
    "‑": "a no-break hyphen",
}


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every option in a directive or a command that begins with another dash than "-"."""
    del context
    quoted = {
        number
        for command in script.commands
        for number in _quoted_lines(command.line, command.text, command.plain)
    }
    commands = {
        number
        for command in script.commands
        for number in range(command.line, command.line + command.text.count("\n") + 1)
    }
    directives = {directive.line for directive in script.directives}
    for number, line in enumerate(script.lines, 1):
        if number not in directives and (number not in commands or number in quoted):
            continue
        plain = outside_quotes(line) if number in directives else line
        options = _options(line, plain)
        if options:
            first = options[0]
            kind = _NAMES.get(first["dash"].strip("-")[:1], "a character that looks like a dash")
            mended = _mended(line, options)
            yield RULE.at(
                number,
                f"{first[0]} begins with {kind}",
                fix=[Edit(line=number, text=mended)],
                advice=mended.strip(),
            )


def _options(line: str, plain: str) -> list[re.Match[str]]:
    """Return the options of ``plain``, in which quoted text is blank.

    A dash right after a quote is part of that word, and one after a bent quote may be text.
    """
    return [
        match
        for match in _OPTION.finditer(plain)
        if line[max(match.start() - 1, 0)] not in "\"'" and not _BENT.search(line, 0, match.start())
    ]


def _mended(line: str, options: list[re.Match[str]]) -> str:
    """Put hyphens in the place of the dashes of options; what quotes hide stays."""
    for match in reversed(options):
        hyphens = "-" if _is_short(match) else "--"
        line = line[: match.start()] + hyphens + line[match.start("name") :]
    return line


def _is_short(match: re.Match[str]) -> bool:
    """One letter is a short option; so is what mpirun and its like know with one hyphen."""
    return len(match["name"]) == 1 or match["name"] in ("np", "al", "la", "mca")


def _quoted_lines(first: int, text: str, plain: str) -> Iterator[int]:
    """Lines whose dashes all stand within quotes, where they may be text."""
    for offset, (line, bare) in enumerate(zip(text.split("\n"), plain.split("\n"), strict=True)):
        if _OPTION.search(line) and not _OPTION.search(bare):
            yield first + offset
