"""Directives after the first command."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Directive, Script

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
        fix = [moved, Edit(line=directive.line, text=None)]
        yield RULE.at(
            directive.line,
            f"{directive.text.strip()} comes after the first command (line {first})",
            fix=[] if _contradicts(script, directive) else fix,
        )


def _contradicts(script: Script, late: Directive) -> bool:
    """Return whether another directive gives one of its options another value: only the author knows which is meant."""
    others = [
        option for one in script.directives if one.line != late.line for option in one.options
    ]
    return any(
        other.name == option.name and other.value != option.value
        for option in late.options
        for other in others
    )
