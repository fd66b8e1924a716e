"""Launchers that are told another number of ranks than Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.calls import calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "rank-count",
    "warning",
    "nodes or GPUs that were asked for stay idle, or the launcher finds too few slots",
    "a published guide asks for 4 tasks on 2 nodes and starts 2",
    "leave it to Slurm, or use $SLURM_NTASKS",
)
_COUNT = re.compile(r"\s(?:-np|-n|--np|--num-proc)[ =](\d+)\b")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """``horovodrun -np`` and ``mpirun -np`` against the tasks of the job."""
    del context
    tasks = tasks_of(script)
    for call in calls(script, "horovodrun", "mpirun", "mpiexec") if tasks else ():
        found = _COUNT.search(call.plain)
        if found and int(found[1]) != tasks:
            yield RULE.at(
                call.line, f"{call.program} starts {found[1]} ranks, the job has {tasks} tasks"
            )


def tasks_of(script: Script) -> int | None:
    """Return the number of tasks of a job; None if its directives do not tell."""
    total = script.value("ntasks")
    if total is not None:
        return int(total) if total.isdigit() else None
    nodes, each = (
        script.value("nodes") or "1",
        script.value("ntasks-per-node") or script.value("tasks-per-node"),
    )
    return int(nodes) * int(each) if each and each.isdigit() and nodes.isdigit() else None
