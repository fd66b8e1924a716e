"""Faults in sbatch scripts that people have already: which line, what comes of it, and what to write in its place. Pure.

A rule is a module of ``lint/rules`` and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, RuleModule
from toolkit.lint.script import lines_of, parse

RULES: tuple[str, ...] = (
    "line_endings",
    "shebang",
    "dashes",
    "quotes",
    "hidden_directive",
    "late_directive",
    "stray_word",
    "unknown_option",
    "bad_value",
    "variable_in_directive",
    "log_name",
    "log_directory",
    "syntax",
    "continuation",
    "assignment",
    "early_expansion",
    "slurm_variable",
    "rank_count",
    "step_cpus",
    "gpu_binding",
    "fixed_port",
    "background",
    "ssh",
    "kill_by_name",
    "secret",
    "site_comment",
    "site_options",
    "site_partition",
    "site_module",
)
_MOST_FIXES = 1000


def modules() -> Iterator[RuleModule]:
    """The modules of all rules, in the order of the registry."""
    for name in RULES:
        module: RuleModule = importlib.import_module(f"toolkit.lint.rules.{name}")
        yield module


def lint(text: str, context: Context | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with a script, in the order of its lines."""
    script, given = parse(text), context or Context()
    if not script.lines:
        return ()
    found = {(one.line, one.rule, one.message): one for module in modules() for one in module.check(script, given)}
    return tuple(sorted(found.values(), key=lambda finding: finding.line))


def fixed(text: str, context: Context | None = None) -> tuple[str, tuple[Finding, ...]]:
    """The script with everything mended that is mechanical, and what was mended."""
    mended: list[Finding] = []
    for _ in range(_MOST_FIXES):
        finding = next((one for one in lint(text, context) if one.fix), None)
        if finding is None:
            break
        changed = applied(text, finding.fix)
        if changed == text:
            break
        text = changed
        mended.append(finding)
    return text, tuple(mended)


def applied(text: str, edits: tuple[Edit, ...]) -> str:
    """``text`` with these lines replaced."""
    new = {edit.line: edit.text for edit in edits}
    lines = (new.get(number, line) for number, line in enumerate(lines_of(text), 1))
    return "\n".join(line for line in lines if line is not None) + ("\n" if text.endswith("\n") or not text else "")
