"""What bash itself says of a script."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule("syntax", "error", "bash stops here, and the job with it", "bash -n")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Faults of syntax, the place where an open quote begins first."""
    if script.open_quote is not None:
        yield RULE.at(script.open_quote, "a quote is opened here and never closed")
        return
    for line, message in context.syntax:
        yield RULE.at(line, message)
