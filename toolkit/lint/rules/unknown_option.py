"""Options that neither sbatch nor srun knows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.errors import nearest
from toolkit.lint.calls import calls, known_options, slurm_options
from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "unknown-option",
    "error",
    "Slurm refuses the whole command",
    "sbatch --help and srun --help of Slurm 22.05 and 24.11",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """In directives, and in calls of srun, sbatch and salloc; unambiguous beginnings of a name are allowed, as there."""
    del context
    for directive in script.directives:
        for option in directive.options:
            if option.written.startswith("--") and option.name.isascii():
                yield from _unknown("sbatch", option.name, directive.line, script)
    for call in calls(script, "srun", "sbatch", "salloc"):
        for name, written, _ in slurm_options(call)[0]:
            if written.startswith("--") and name.isascii():
                yield from _unknown(call.program, name, call.line, script)


def _unknown(program: str, name: str, line: int, script: Script) -> Iterator[Finding]:
    known = known_options(program)
    begun = sorted({one.replace("_", "-") for one in known if name and one.startswith(name)})
    if name in known or not name or len(begun) == 1:
        return
    if begun:
        advice = f"one of --{', --'.join(begun)}"
        yield RULE.at(line, f"--{name} may be several options of {program}", advice=advice)
        return
    close = nearest(name, known)
    text = script.lines[line - 1]
    dashed = name.replace("_", "-")
    right = (
        close
        if close and (dashed in (close, f"n{close}") or dashed.removeprefix("num-") == close)
        else None
    )
    if dashed == "num-tasks-per-node":
        close = right = "ntasks-per-node"
    written = re.compile(rf"(?<![^\s])--{re.escape(name)}(?![\w-])")
    places = len(written.findall(text))  # more than one: the others may be the program's own
    fix = [Edit(line=line, text=written.sub(f"--{right}", text))] if right and places == 1 else []
    yield RULE.at(
        line,
        f"{program} has no option --{name}",
        fix=fix,
        advice=f"close: --{close}" if close else "",
    )
