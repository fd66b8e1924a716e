"""Passwords and tokens on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "secret",
    "error",
    "everybody on the machine sees it in the process list, and everybody who may read the script or its log",
    "proc(5); a published guide starts Jupyter with the user's name as its token",
    "read it from a file of mode 0600, or set the variable before sbatch",
)
_ARGUMENT = re.compile(
    r"--(?:[\w.]*[._-])?(?:token|password|passwd|secret|api[_-]?key)[= ](?P<value>[\"']?[^\s\"']+)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(
    r"\b(?P<name>\w*(?:TOKEN|PASSWORD|SECRET|API_?KEY))=[\"']?(?P<value>[^\s\"'$;]{6,})"
)
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|ghp_[A-Za-z0-9]{20,}|glpat-[\w-]{16,})"
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Options that carry one, variables set to one, and what looks like one. The value itself is not repeated."""
    del context
    for command in script.commands:
        for match in _ARGUMENT.finditer(command.text):
            option = match[0].split("=")[0].split()[0]
            yield RULE.at(command.line_of(match.start()), f"{option} is given on the command line")
        for match in _VARIABLE.finditer(command.text):
            if not match["value"].startswith(("/", "~", "`")):
                yield RULE.at(
                    command.line_of(match.start()),
                    f"the value of {match['name']} stands in the script",
                )
        for match in _KNOWN.finditer(command.text):
            if not _VARIABLE.search(command.text):
                yield RULE.at(command.line_of(match.start()), "a token stands in the script")
