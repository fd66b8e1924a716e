"""Commands that fall apart at the end of a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "continuation",
    "error",
    "the command ends here; what follows is run as a command of its own, and is not found",
    "a published guide's script of submitit",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Blanks after a backslash, and lines that begin with an option."""
    del context
    inside = {
        number
        for command in script.commands
        for number in range(command.line + 1, command.line + command.text.count("\n") + 1)
    }
    for command in script.commands:
        if re.match(r"\s*--?[A-Za-z][\w-]*(?:[ =]|$)", command.plain):
            word = command.text.strip().split()[0]
            yield RULE.at(
                command.line,
                f"this line begins with an option: {word}",
                fix=_joined(script, command.line),
                advice="end the line before with a backslash",
            )
    for number, line in enumerate(script.lines, 1):
        if (
            re.search(r"\s\\[ \t]+$", line)
            and not line.lstrip().startswith("#")
            and number not in inside
        ):
            yield RULE.at(
                number, "blanks follow the backslash", fix=[Edit(line=number, text=line.rstrip())]
            )


def _joined(script: Script, number: int) -> Iterator[Edit]:
    """Backslashes from the line before the option to the last line that is indented as deep."""
    before, depth = (
        script.lines[number - 2] if number > 1 else "",
        _indent(script.lines[number - 1]),
    )
    if not before.strip() or before.lstrip().startswith("#") or not depth:
        return
    last = number
    while (
        last < len(script.lines)
        and script.lines[last].strip()
        and _indent(script.lines[last]) >= depth
    ):
        last += 1
    for line in range(number - 1, last):
        text = script.lines[line - 1].rstrip()
        yield Edit(line=line, text=text if text.endswith("\\") else f"{text} \\")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
