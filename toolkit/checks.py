"""Checks and their results, as doctor, verify, lint and workshops have them.

A check is a function under ``@check``. Each room has its own in one tuple, in the order in which
they are made and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

from toolkit.errors import ToolkitError

Outcome = Literal["passed", "warning", "failed", "unchecked"]


class Edit(NamedTuple):
    """A replacement of one line of a text.

    Attributes:
        line: its number, from 1.
        text: the new text, possibly of several lines; None removes the line.
    """

    line: int
    text: str | None


class Result(NamedTuple):
    """The result of a check.

    Attributes:
        outcome: ``unchecked`` if the check could not be made; ``message`` says why.
        message: what the check found.
        fix: what to do about it; empty if there is nothing to do.
        cause: why it matters: what follows if it stays so.
        source: where the violated rule is written, or who reported the fact.
        name: name of the check; filled in by the check.
        line: number of the line in the examined text, from 1; 0 if there is none.
        edits: edits that fix it, if that can be done without thinking.
    """

    outcome: Outcome
    message: str
    fix: str = ""
    cause: str = ""
    source: str = ""
    name: str = ""
    line: int = 0
    edits: tuple[Edit, ...] = ()


# Results of a check that passed, did with a warning, failed, or could not be made, by a message and
# perhaps a fix.
passed, warned = partial(Result, "passed"), partial(Result, "warning")
failed, unchecked = partial(Result, "failed"), partial(Result, "unchecked")


def at(line: int, message: str, *, edits: Iterable[Edit] = (), fix: str = "") -> Result:
    """Return the failure of a check at a line of the examined text."""
    return Result("failed", message, fix, line=line, edits=tuple(edits))


def from_error(error: ToolkitError) -> Result:
    """Return the failure that an error describes."""
    return failed(error.cause, error.advice)


# The words of lists that tell what a user's place lacks: `toolkit doctor`, `toolkit workshop join`.
_WORDS = {"passed": "PASS", "warning": "WARN", "failed": "FAIL", "unchecked": "not checked"}


def row(result: Result, width: int) -> list[str]:
    """Return the lines of a result in a list.

    Args:
        result: the result.
        width: of the column of names.
    """
    column = max(map(len, _WORDS.values()))
    rows = [(_WORDS[result.outcome], result.name, result.message)]
    rows += [("", "", f"next: {result.fix}")] if result.fix else []
    return [f"{word:<{column}}  {name:<{width}}  {text}" for word, name, text in rows]


def to_json(result: Result) -> dict[str, str]:
    """Return a result of a list as an object for programs."""
    word = _WORDS[result.outcome]
    return {
        "name": result.name,
        "outcome": word,
        "detail": result.message,
        "next_step": result.fix,
    }


class Check(NamedTuple):
    """A check.

    Attributes:
        name: unique within its tuple.
        about: what must hold, in a few words.
        make: from a case to one result, or to a result for each fault.
        scope: ``site``: the result holds for one cluster only; ``nodes``: the check takes nodes.
        severity: ``warning`` if a failure does not stop anything.
        cause, fix, source: why a failure matters, what to do about it, where that is known from.
    """

    name: str
    about: str
    make: Callable[[Any], Result | Iterable[Result]]
    scope: Literal["host", "site", "nodes"] = "host"
    severity: Literal["error", "warning"] = "error"
    cause: str = ""
    fix: str = ""
    source: str = ""

    def __call__(self, case: Any) -> Iterator[Result]:
        """Make the check, and yield its results with what they have in common."""
        given = self.make(case)
        for result in (given,) if isinstance(given, Result) else given:
            is_mild = result.outcome == "failed" and self.severity == "warning"
            yield result._replace(
                outcome="warning" if is_mild else result.outcome,
                name=self.name,
                cause=result.cause or self.cause,
                fix=result.fix or self.fix,
                source=result.source or self.source,
            )

    def only(self, case: Any) -> Result:
        """Make a check that has exactly one result; an error of ours counts as a failure."""
        try:
            (result,) = self(case)
        except ToolkitError as error:
            result = from_error(error)._replace(name=self.name)
        return result


def check(
    name: str, about: str = "", **common: Any
) -> Callable[[Callable[[Any], Result | Iterable[Result]]], Check]:
    """Turn a function into a check.

    Args:
        name: of the check.
        about: what must hold, in a few words.
        common: other fields of ``Check``.
    """
    return lambda function: Check(name, about, function, **common)
