"""Variables in a directive, where nobody replaces them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "variable-in-directive",
    "error",
    "no shell reads a directive: the name is taken literally, with its dollar sign",
    "sbatch(1); tried with Slurm 22.05",
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))|`[^`]*`|\$\(")
_PATTERNS = {
    "USER": "%u",
    "SLURM_JOB_ID": "%j",
    "SLURM_JOBID": "%j",
    "SLURM_JOB_NAME": "%x",
    "SLURM_ARRAY_TASK_ID": "%a",
}
_PATHS = ("output", "error", "input")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every variable; in names of log files, those that Slurm has a pattern for can be mended."""
    del context
    for directive in script.directives:
        for option in directive.options if directive.effective else ():
            found = _VARIABLE.search(option.value or "")
            if not found:
                continue
            name = found[1] or found[2] or ""
            is_only = directive.text.count(found[0]) == (option.value or "").count(found[0])
            pattern = _PATTERNS.get(name) if option.name in _PATHS and is_only else None
            if pattern:
                mended = re.sub(r"\$(?:\{" + name + r"\}|" + name + r"\b)", pattern, directive.text)
                yield RULE.at(
                    directive.line,
                    f"{found[0]} is not replaced in {option.written}",
                    fix=[Edit(line=directive.line, text=mended)],
                    advice=f"Slurm's own pattern: {pattern}",
                )
            else:
                yield RULE.at(
                    directive.line,
                    f"{found[0]} is not replaced in {option.written}",
                    advice="write the value, or give the option to sbatch itself",
                )
