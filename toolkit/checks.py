"""Checks and their results, as doctor, verify, lint and workshops have them.

A check is a function under ``@check``. Each room has its own in one tuple, in the order in which
they are made and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, Literal, NamedTuple

from toolkit.errors import ToolkitError
from toolkit.registry import modules

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
        error: the error that stops the job; it carries the exit code and the close choices.
    """

    outcome: Outcome
    message: str
    fix: str = ""
    cause: str = ""
    source: str = ""
    name: str = ""
    line: int = 0
    edits: tuple[Edit, ...] = ()
    error: ToolkitError | None = None


def passed(message: str) -> Result:
    """Return the result of a check that passed."""
    return Result("passed", message)


def warned(message: str, fix: str = "") -> Result:
    """Return the result of a check that passed with a warning."""
    return Result("warning", message, fix)


def failed(message: str, fix: str = "") -> Result:
    """Return the result of a check that failed."""
    return Result("failed", message, fix)


def unchecked(reason: str, fix: str = "") -> Result:
    """Return the result of a check that could not be made."""
    return Result("unchecked", reason, fix)


def at(line: int, message: str, *, edits: Iterable[Edit] = (), fix: str = "") -> Result:
    """Return the failure of a check at a line of the examined text."""
    return Result("failed", message, fix, line=line, edits=tuple(edits))


def from_error(error: ToolkitError, source: str = "", *, stops: bool = True) -> Result:
    """Return the failure that an error describes; a warning if the error does not stop the job."""
    error.source = source
    outcome: Outcome = "failed" if stops else "warning"
    return Result(outcome, error.cause, next_step(error), source=source, error=error)


def next_step(error: ToolkitError) -> str:
    """Return what an error advises: its next step, or else the closest valid choice."""
    return error.next_step or (f"close: {error.close}" if error.close else "")


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
        at_build: every build of an image ends with it, since it is quick.
        severity: ``warning`` if a failure does not stop anything.
        cause, fix, source: why a failure matters, what to do about it, where that is known from.
    """

    name: str
    about: str
    make: Callable[[Any], Result | Iterable[Result]]
    scope: Literal["host", "site", "nodes"] = "host"
    at_build: bool = False
    severity: Literal["error", "warning"] = "error"
    cause: str = ""
    fix: str = ""
    source: str = ""
    order: int = 0

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
            result = failed(error.cause, next_step(error))._replace(name=self.name)
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


class Registry:
    """The checks of a package, found in its modules when they are first needed."""

    def __init__(self, package: str) -> None:
        self._package = package

    @cached_property
    def checks(self) -> dict[str, Check]:
        """The checks by name, in their order; equal ones as their modules have them."""
        ordered = sorted(self._find(), key=lambda check: check.order)
        named = {check.name: check for check in ordered}
        assert len(named) == len(ordered), f"two checks of {self._package} have one name"
        return named

    def _find(self) -> Iterator[Check]:
        """Yield the checks in variables of the modules: a check, or a table of them."""
        for module in modules(self._package):
            for value in vars(module).values():
                if isinstance(value, Check):
                    yield value

    def results(self, case: Any, names: Collection[str] | None = None) -> Iterator[Result]:
        """Make all checks, or those with these names, and yield every result."""
        for name, check in self.checks.items():
            if names is None or name in names:
                yield from check(case)
