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
    "blank_equals",
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
    "node_count",
    "lone_launcher",
    "local_rendezvous",
    "world_size",
    "step_cpus",
    "gpu_binding",
    "no_nv",
    "conda_activate",
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
    found = {
        (one.line, one.rule, one.message): one
        for module in modules()
        for one in module.check(script, given)
    }
    return tuple(sorted(found.values(), key=lambda finding: finding.line))


def fixed(text: str, context: Context | None = None) -> tuple[str, tuple[Finding, ...]]:
    """The script with everything mended that is mechanical, and what was mended."""
    mended: list[Finding] = []
    for _ in range(_MOST_FIXES):
        step = _next_fix(text, context)
        if step is None:
            break
        text = step[0]
        mended.append(step[1])
    return text, tuple(mended)


def _next_fix(text: str, context: Context | None) -> tuple[str, Finding] | None:
    """Return the script with the first fault mended that can be; a fix that brings more faults than it mends is none."""
    found = lint(text, context)
    for finding in found:
        changed = applied(text, finding.fix) if finding.fix else text
        if changed != text and len(lint(changed, context)) <= len(found):
            return changed, finding
    return None


def applied(text: str, edits: tuple[Edit, ...]) -> str:
    """``text`` with these lines replaced."""
    new = {edit.line: edit.text for edit in edits}
    lines = (new.get(number, line) for number, line in enumerate(lines_of(text), 1))
    return "\n".join(line for line in lines if line is not None) + (
        "\n" if text.endswith("\n") or not text else ""
    )
