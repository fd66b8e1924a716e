"""A WORLD_SIZE that is not the number of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.rules.rank_count import tasks_of
from toolkit.lint.script import Script, node_range

RULE = Rule(
    "world-size",
    "error",
    "ranks wait for others that never come, or some are left out",
    "pytorch.org: WORLD_SIZE is the number of all ranks",
    "WORLD_SIZE=$SLURM_NTASKS",
)
_SIZE = re.compile(
    r"(?:\bWORLD_SIZE=|--world[_-]size[= ])[\"']?(?P<size>\d{1,7})(?=[\s\"';&|)\\]|$)"
)
_OWN = re.compile(
    r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\bdeepspeed\b|\baccelerate\b"
)
_GPUS = re.compile(r"(?:gpu(?::[\w-]{1,64})?:)?(?P<count>\d{1,4})\Z")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Compare a number in the script with the job's tasks and GPUs; torchrun sets its own."""
    del context
    tasks = tasks_of(script)
    if tasks is None or any(_OWN.search(command.text) for command in script.commands):
        return
    fitting = {tasks, _all_gpus(script)}
    for command in script.commands:
        for found in _SIZE.finditer(command.text):
            if int(found["size"]) not in fitting:
                message = f"WORLD_SIZE is {found['size']}, and the job has {tasks} tasks"
                yield RULE.at(command.line_of(found.start("size")), message)


def _all_gpus(script: Script) -> int | None:
    """Return the GPUs of all nodes: a script may start a rank for each by itself."""
    nodes = node_range(script)
    if (total := script.value("gpus")) is not None:
        found = _GPUS.match(total)
        return int(found["count"]) if found else None
    each = _GPUS.match(script.value("gpus-per-node") or script.value("gres") or "")
    return nodes[1] * int(each["count"]) if nodes and each else None
