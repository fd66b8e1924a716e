"""Processes ended by their name."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.calls import calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "kill-by-name",
    "warning",
    "on a shared node it also ends your other jobs",
    "scripts for vLLM and Ollama on a shared cluster",
    'pid=$! after the start, and kill "$pid" (or trap it)',
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """pkill, killall, ``ray stop``."""
    del context
    for call in calls(script, "pkill", "killall"):
        yield RULE.at(call.line, f"{call.program} ends processes by their name")
    for call in calls(script, "ray"):
        if call.words[1:2] == ("stop",):
            yield RULE.at(call.line, "ray stop ends every Ray of yours on the node, by name")
