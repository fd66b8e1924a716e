"""Ports that two jobs on one node would share."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "fixed-port",
    "warning",
    "two jobs on one node, or a job and the one before it, meet at the same port: address already in use",
    "pytorch#116974; ray#59551",
    "MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))",
)
_PORT = re.compile(
    r"(?:\b(?:MASTER_)?PORT=|--(?:master[_-]port|port|dashboard-port|rdzv[_-]port)[= ]|"
    r"--(?:rdzv[_-]endpoint|dist-url|init-method|address)[= ]\S{0,200}?:|tcp://[^\s\"']{0,200}?:)"
    r"\"?(?P<port>\d{4,5})\b"
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every port that is a number in the script."""
    del context
    for command in script.commands:
        for match in _PORT.finditer(command.bare):
            yield RULE.at(
                command.line_of(match.start("port")),
                f"port {match['port']} is the same for every job",
            )
