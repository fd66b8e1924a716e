"""Apply all rules to a script, and fix its faults. Pure."""

from __future__ import annotations

from typing import Any

from toolkit.checks import Edit, Result
from toolkit.lint.rules import RULES
from toolkit.lint.script import Context, parse

_MOST_FIXES = 1000


def lint(text: str, context: Context | None = None) -> tuple[Result, ...]:
    """Return all faults of a script, in the order of its lines."""
    script = parse(text, context)
    faults = (result for rule in RULES for result in rule(script))
    results = {(result.line, result.name, result.message): result for result in faults}
    return tuple(sorted(results.values(), key=lambda result: result.line))


def fixed(text: str, context: Context | None = None) -> tuple[str, tuple[Result, ...]]:
    """Return the script with every mechanical fault fixed, and the faults that were."""
    faults: list[Result] = []
    while len(faults) < _MOST_FIXES:
        results = lint(text, context)
        for result in results:
            changed = applied(text, result.edits)
            # A fix that brings more faults than it removes does not count.
            if changed != text and len(lint(changed, context)) <= len(results):
                text = changed
                faults.append(result)
                break
        else:
            break
    return text, tuple(faults)


def applied(text: str, edits: tuple[Edit, ...]) -> str:
    """Return ``text`` with these lines replaced."""
    new = {edit.line: edit.text for edit in edits}
    lines = enumerate(text.removesuffix("\n").split("\n"), 1)
    changed = (new.get(number, line) for number, line in lines)
    return "\n".join(line for line in changed if line is not None) + (
        "\n" if text.endswith("\n") or not text else ""
    )


def severity(result: Result) -> str:
    """Return ``error`` or ``warning``."""
    return "error" if result.outcome == "failed" else "warning"


def to_json(result: Result) -> dict[str, Any]:
    """Return a fault as an object for programs."""
    return {
        "rule": result.name,
        "severity": severity(result),
        "line": result.line,
        "message": result.message,
        "why": result.cause,
        "source": result.source,
        "advice": result.fix,
        "fix": [edit._asdict() for edit in result.edits],
    }


def report(result: Result, file: str) -> list[str]:
    """Return the lines about a fault of a file, as compilers print them."""
    head = f"{file}:{result.line}: {severity(result)}: {result.message} [{result.name}]"
    return [
        head,
        *(
            f"    {label}   {text}"
            for label, text in (("why", result.cause), ("fix", result.fix))
            if text
        ),
    ]
