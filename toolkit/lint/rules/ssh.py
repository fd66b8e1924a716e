"""Ranks started by ssh."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.calls import calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "ssh",
    "warning",
    "what it starts is not part of the job: it has none of its variables and limits, and may outlive it; many sites forbid it",
    "a published guide's script for MultiWorkerMirroredStrategy",
    "srun --nodes=1 --ntasks=1 --nodelist=<node> ..., or one srun for all",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """ssh in a batch script."""
    del context
    for call in calls(script, "ssh") if script.is_batch else ():
        yield RULE.at(call.line, "processes on the nodes are started by ssh")
