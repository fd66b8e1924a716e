"""Blanks beside the ``=`` of a directive's option."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Directive, Script, blank_equals, parse

RULE = Rule(
    "blank-equals",
    "error",
    "sbatch takes the = itself for the value, or an empty value, and what follows for something else",
    "getopt_long(3); tried with Slurm 22.05",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Find ``--job-name = train``; within quotes it is text."""
    del context
    for directive in script.directives:
        if found := blank_equals(directive.text):
            text = directive.text
            fixed = f"{text[: found.end('name')]}={text[found.end() :]}"
            fix = [Edit(line=directive.line, text=fixed)] if _is_sound(directive, fixed) else []
            message = f"there is a blank beside the = of {found['name']}"
            yield RULE.at(directive.line, message, fix=fix, advice=fixed)


def _is_sound(directive: Directive, fixed: str) -> bool:
    """Return whether the corrected line has the same options as before, now with their values."""
    (after,) = parse(fixed).directives
    names = [option.name for option in directive.options]
    return not after.problem and [option.name for option in after.options] == names
