"""Apply all rules to a script, and fix its faults. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from toolkit.checks import Edit, Format, Registry, Result
from toolkit.lint.script import Script, lines_of, parse
from toolkit.model.site import Site

REGISTRY: Registry[LintCase] = Registry("toolkit.lint.rules")
_MOST_FIXES = 1000


def lint(text: str, context: Context | None = None) -> tuple[Result, ...]:
    """Return all faults of a script, in the order of its lines."""
    case = LintCase(parse(text), context or Context())
    if not case.script.lines:
        return ()
    results = {
        (result.line, result.name, result.message): result for result in REGISTRY.results(case)
    }
    return tuple(sorted(results.values(), key=lambda result: result.line))


def fixed(text: str, context: Context | None = None) -> tuple[str, tuple[Result, ...]]:
    """Return the script with every mechanical fault fixed, and the faults that were."""
    faults: list[Result] = []
    for _ in range(_MOST_FIXES):
        step = _next_fix(text, context)
        if step is None:
            break
        text = step[0]
        faults.append(step[1])
    return text, tuple(faults)


def _next_fix(text: str, context: Context | None) -> tuple[str, Result] | None:
    """Return the script with the first fault fixed that can be.

    A fix that brings more faults than it removes does not count.
    """
    results = lint(text, context)
    for result in results:
        changed = applied(text, result.edits) if result.edits else text
        if changed != text and len(lint(changed, context)) <= len(results):
            return changed, result
    return None


def applied(text: str, edits: tuple[Edit, ...]) -> str:
    """Return ``text`` with these lines replaced."""
    new = {edit.line: edit.text for edit in edits}
    lines = (new.get(number, line) for number, line in enumerate(lines_of(text), 1))
    return "\n".join(line for line in lines if line is not None) + (
        "\n" if text.endswith("\n") or not text else ""
    )


FORMAT = Format(
    words={"failed": "error", "warning": "warning"},
    keys={
        "rule": "name",
        "severity": "outcome",
        "line": "line",
        "message": "message",
        "why": "cause",
        "source": "source",
        "advice": "fix",
        "fix": "edits",
    },
)


class Context(NamedTuple):
    """Facts that rules know apart from the script.

    Attributes:
        site: the cluster that the script is for; None if rules of sites do not apply.
        is_directory: whether a path, relative to the script's directory, is a directory; if that is
            not known, every path is taken for one.
        syntax: bash's own errors: line and message.
    """

    site: Site | None = None
    is_directory: Callable[[str], bool] = bool
    syntax: tuple[tuple[int, str], ...] = ()


class LintCase(NamedTuple):
    """A script and its context.

    Attributes:
        script: the parsed script.
        context: facts that rules know apart from it.
    """

    script: Script
    context: Context

    @property
    def site(self) -> Site | None:
        """The cluster that the script is for."""
        return self.context.site
