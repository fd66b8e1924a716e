"""Steps that get one CPU for each task, whatever the job asked for."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.calls import calls, slurm_options
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "step-cpus",
    "warning",
    "from Slurm 22.05 to 23.02 a step does not inherit --cpus-per-task: each task has one CPU",
    "Slurm's CHANGELOG, slurm-22.05.md and slurm-23.11.md",
    'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"',
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """srun without it in a job that asks for more than one."""
    del context
    asked = script.value("cpus-per-task") or "1"
    if asked == "1" or any("SRUN_CPUS_PER_TASK" in command.text for command in script.commands):
        return
    for call in calls(script, "srun"):
        options, program = slurm_options(call)
        if program and not {"cpus-per-task", "overlap"} & {name for name, _, _ in options}:
            yield RULE.at(call.line, f"this step gets 1 CPU for each task, not {asked}")
