"""Directives after the first command."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "late-directive",
    "error",
    "sbatch stops reading directives at the first command; this one is a comment, without a word said",
    "sbatch(1); tried with Slurm 22.05",
    "move it up, before the first command",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every directive that sbatch does not come to."""
    del context
    late = [directive for directive in script.directives if not directive.effective]
    if not late:
        return
    first = script.commands[0].line
    for directive in late:
        moved = Edit(line=first, text=f"{directive.text}\n{script.lines[first - 1]}")
        yield RULE.at(
            directive.line,
            f"{directive.text.strip()} comes after the first command (line {first})",
            fix=[moved, Edit(line=directive.line, text=None)],
        )
