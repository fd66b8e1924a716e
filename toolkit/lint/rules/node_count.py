"""Launchers that are told another number of nodes than Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script, node_range

RULE = Rule(
    "node-count",
    "error",
    "torchrun waits for nodes that never come, or each node trains alone",
    "pytorch.org: torchrun --nnodes",
    "--nnodes=$SLURM_NNODES",
)
_LAUNCHER = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_COUNT = re.compile(
    r"--nnodes[= ]\s{0,8}[\"']?(?P<least>\d{1,6})(?::(?P<most>\d{1,6}))?(?=[\s\"'\\]|$)"
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Find ``--nnodes`` with a number that is not the job's."""
    del context
    nodes = node_range(script)
    if nodes is None:
        return
    for command in script.commands:
        found = _COUNT.search(command.text) if _LAUNCHER.search(command.text) else None
        if found is None or "--standalone" in command.text:
            continue
        least, most = int(found["least"]), int(found["most"] or found["least"])
        if most < nodes[0] or least > nodes[1]:
            job = str(nodes[0]) if nodes[0] == nodes[1] else f"{nodes[0]} to {nodes[1]}"
            wanted = found["least"] + (f":{found['most']}" if found["most"] else "")
            message = f"torchrun is told --nnodes={wanted}, and the job has --nodes={job}"
            yield RULE.at(command.line_of(found.start()), message)
