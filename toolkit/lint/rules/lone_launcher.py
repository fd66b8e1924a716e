"""Launchers that the batch script starts itself, which is on the first node only."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.calls import Call, calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script, is_conditional, least_nodes

RULE = Rule(
    "lone-launcher",
    "error",
    "the batch script runs on the first node only: the other nodes stay idle, and the launcher waits for them or trains alone",
    "sbatch(1); pytorch.org: torchrun is to be started once on each node",
    'srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 torchrun ...',
)
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Find torchrun without srun in a job of several nodes, unless srun starts the script itself."""
    del context
    nodes = least_nodes(script)
    if nodes < 2 or _is_started_by_srun(script):
        return
    for call in calls(script, "torchrun", "python", "python3"):
        if (
            _is_launcher(call)
            and not _is_continued(call)
            and not is_conditional(script, call.command)
        ):
            message = f"{call.program} starts on the first of {nodes} nodes only"
            yield RULE.at(call.line, message)


def _is_launcher(call: Call) -> bool:
    words = call.words
    return call.program == "torchrun" or (
        len(words) > 2 and words[1] == "-m" and words[2] in _MODULES
    )


def _is_continued(call: Call) -> bool:
    """Return whether the line before ends with a backslash: then another program starts this one."""
    lines = call.command.plain.split("\n")
    number = call.line - call.command.line
    before = lines[number - 1] if number else ""
    return before.rstrip(" \t").endswith("\\")


def _is_started_by_srun(script: Script) -> bool:
    """Return whether srun starts a launcher, or the script again, which then runs on every node."""
    words = ("$0", "${0}", "BASH_SOURCE", "torchrun", *_MODULES)
    return any(word in call.text for call in calls(script, "srun") for word in words)
