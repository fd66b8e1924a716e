"""Assignments that a blank has broken."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "assignment",
    "error",
    "the shell takes the first word for a command, or gives the variable only a part of its value",
    "a published guide's scripts",
)
_NAME_WITH_BLANK = re.compile(r"^\s*(?:export\s+)?([A-Z]+(?: [A-Z]+)+)=")
_BROKEN_PATH = re.compile(
    r"^\s*export\s+(?P<name>\w*PATH)=(?P<value>\S+) +(?P<rest>/\S*:\$\{?(?P=name)\}?)"
)
_AROUND = re.compile(r"^\s*([A-Za-z_]\w*) += *\S|^\s*([A-Z_][A-Z0-9_]*)= +[^\s\"'#]+$")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Names of several words, paths with a blank, blanks around ``=``."""
    del context
    for command in script.commands:
        name = _NAME_WITH_BLANK.match(command.plain)
        if name:
            yield RULE.at(
                command.line,
                f"{name[1]!r} cannot be the name of a variable",
                advice=f"{name[1].replace(' ', '_')}=...",
            )
            continue
        broken = _BROKEN_PATH.match(command.bare)
        if broken:
            yield RULE.at(
                command.line,
                f"there is a blank in the value of {broken['name']}",
                advice=f"{broken['value']}{broken['rest']}",
            )
            continue
        around = _AROUND.match(command.plain)
        if around and not re.match(
            r"\s*(?:\[|test|if|while|let|local|declare|readonly|expr)\b", command.plain
        ):
            yield RULE.at(
                command.line,
                f"a blank beside the = of {around[1] or around[2]}",
                advice="no blanks around =",
            )
