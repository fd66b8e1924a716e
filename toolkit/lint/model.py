"""What a rule of lint says, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, Protocol

from toolkit.lint.script import Script
from toolkit.model.base import Model
from toolkit.model.site import Site

Severity = Literal["error", "warning"]


class Edit(Model, frozen=True, kw_only=True):
    """A line of the script, replaced.

    Attributes:
        line: its number, from 1.
        text: what it becomes, maybe several lines; None: it goes.
    """

    line: int
    text: str | None


class Finding(Model, frozen=True, kw_only=True):
    """Something wrong with a script.

    Attributes:
        rule: the name of the rule.
        severity: ``error``: the script does something else than it says; ``warning``: it works, until it does not.
        line: where, from 1.
        message: what is wrong, in one sentence.
        why: what comes of it.
        source: where this is known from.
        advice: what to write in its place.
        fix: the edits that mend it, where that is mechanical.
    """

    rule: str
    severity: Severity
    line: int
    message: str
    why: str
    source: str
    advice: str = ""
    fix: tuple[Edit, ...] = ()


class Context(NamedTuple):
    """What a rule may know apart from the script.

    Attributes:
        site: the cluster that the script is for; None: rules of sites say nothing.
        is_directory: whether a path, relative to where the script lies, is a directory; where nobody knows, it is taken for one.
        syntax: what bash itself says of the script: line and message.
    """

    site: Site | None = None
    is_directory: Callable[[str], bool] = bool
    syntax: tuple[tuple[int, str], ...] = ()


class Rule(NamedTuple):
    """What all findings of a rule have in common."""

    name: str
    severity: Severity
    why: str
    source: str
    advice: str = ""

    def at(self, line: int, message: str, *, fix: Iterable[Edit] = (), advice: str = "") -> Finding:
        """A finding of this rule."""
        return Finding(
            rule=self.name,
            severity=self.severity,
            line=line,
            message=message,
            why=self.why,
            source=self.source,
            advice=advice or self.advice,
            fix=tuple(fix),
        )


class RuleModule(Protocol):
    """A module of ``lint/rules``."""

    RULE: Rule

    def check(self, script: Script, context: Context) -> Iterable[Finding]:
        """Everything that this rule finds."""
