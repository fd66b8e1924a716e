"""Ranks of several nodes that are told to meet at localhost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script, is_conditional, least_nodes

RULE = Rule(
    "local-rendezvous",
    "error",
    "each node looks for the others on itself: the job hangs until its time is over",
    "pytorch.org: the rendezvous endpoint is a host that all nodes reach",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
)
_HERE = r"(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[?::1\]?|0\.0\.0\.0)(?=[:\s\"'/\\;&|)]|$)"
_MEETING = re.compile(
    rf"(?:\bMASTER_ADDR=|--(?:master[_-]addr|rdzv[_-]endpoint|dist-url|init-method)[= ])[\"']?(?:tcp://)?(?P<place>{_HERE})"
)
_CHOSEN = re.compile(r"\bMASTER_ADDR=[\"']?\$[({]")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Find a meeting point at localhost in a job of several nodes, unless it is only for the case of one."""
    del context
    if least_nodes(script) < 2 or any(_CHOSEN.search(command.text) for command in script.commands):
        return
    for command in script.commands:
        for found in _MEETING.finditer(command.text):
            if "--standalone" not in command.text and not is_conditional(script, command):
                message = f"ranks of several nodes are told to meet at {found['place']}"
                yield RULE.at(command.line_of(found.start("place")), message)
