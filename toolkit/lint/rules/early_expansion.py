"""Variables of a task that the batch shell replaces before the tasks are there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.calls import calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "early-expansion",
    "error",
    "the batch shell replaces it once, with its own value: every rank gets that of rank 0",
    "ml-engineering, slurm/users.md",
)
_OF_TASK = re.compile(
    r"\$\{?(SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|SLURMD_NODENAME|SLURM_TASK_PID|PMI_RANK|PMIX_RANK|OMPI_COMM_WORLD_(?:LOCAL_)?RANK)\b"
)
_EXPORTED = re.compile(
    r"^\s*export\s+(?P<name>\w+)=\S*?\$\{?(?P<variable>SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID)\b"
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """In the arguments of srun and mpirun, unless single quotes keep the batch shell from it; and in exports of a batch script."""
    del context
    for call in calls(script, "srun", "mpirun", "mpiexec"):
        found = _OF_TASK.search(call.bare)
        if found:
            offset = call.text.count("\n", 0, found.start())
            yield RULE.at(
                call.line + offset,
                f"${found[1]} is replaced before {call.program} starts the tasks",
                advice=f"{call.program} ... bash -c '... ${found[1]} ...'",
            )
    if not script.is_batch:
        return  # a script that srun starts on every task may do so
    for command in script.commands:
        exported = _EXPORTED.match(command.bare)
        if exported:
            yield RULE.at(
                command.line,
                f"{exported['name']} is set once, in the batch shell, from ${exported['variable']}",
                advice="set it in what srun starts",
            )
