"""One framework for all checks: preflight rules, doctor items, checks of images and lint rules.

A check is a function under ``@check``, in a module of a package that a ``Registry`` names. Adding a
check is adding it there: no other file lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from toolkit.errors import ToolkitError
from toolkit.model.base import Model
from toolkit.registry import modules

CaseT = TypeVar("CaseT")
Scope = Literal["host", "site", "nodes"]
Outcome = Literal["passed", "warning", "failed", "unchecked"]


class Edit(Model, frozen=True, kw_only=True):
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


class Format(NamedTuple):
    """The words and the JSON keys of one kind of check.

    Attributes:
        words: outcome -> the word that users and programs read.
        keys: key in JSON -> field of ``Result``.
    """

    words: Mapping[Outcome, str]
    keys: Mapping[str, str]

    def to_json(self, result: Result) -> dict[str, Any]:
        """Return a result as an object for programs."""
        fields = {**result._asdict(), "outcome": self.words[result.outcome]}
        fields["edits"] = [{"line": edit.line, "text": edit.text} for edit in result.edits]
        return {key: fields[field] for key, field in self.keys.items()}

    def to_row(self, result: Result, width: int) -> list[str]:
        """Return the lines of a result in a list.

        Args:
            result: the result.
            width: of the column of names.
        """
        column = max(map(len, self.words.values()))
        rows = [(self.words[result.outcome], result.name, result.message)]
        rows += [("", "", f"next: {result.fix}")] if result.fix else []
        return [f"{word:<{column}}  {name:<{width}}  {text}" for word, name, text in rows]

    def to_report(self, result: Result, file: str) -> list[str]:
        """Return the lines of a result about a line of a file, as compilers print them."""
        head = f"{file}:{result.line}: {self.words[result.outcome]}: {result.message}"
        details = (("why", result.cause), ("fix", result.fix))
        lines = (f"    {label}   {text}" for label, text in details if text)
        return [f"{head} [{result.name}]", *lines]


# Of lists that tell what a user's place lacks: `toolkit doctor`, `toolkit workshop join`.
LIST_FORMAT = Format(
    words={"passed": "PASS", "warning": "WARN", "failed": "FAIL", "unchecked": "not checked"},
    keys={"name": "name", "outcome": "outcome", "detail": "message", "next_step": "fix"},
)


class Traits(NamedTuple):
    """The traits of a check: its place and cost, and what its results have in common.

    Attributes:
        order: position in the registry; what later checks need comes first.
        scope: ``site``: the result holds for one cluster only; ``nodes``: the check takes nodes.
        at_build: every build of an image ends with it, since it is quick.
        severity: ``warning`` if a failure does not stop anything.
        cause, fix, source: why a failure matters, what to do about it, where that is known from.
    """

    order: int = 1000
    scope: Scope = "host"
    at_build: bool = False
    severity: Literal["error", "warning"] = "error"
    cause: str = ""
    fix: str = ""
    source: str = ""


class Check(Generic[CaseT]):
    """A check: its name, what it is about, and the function that makes it.

    Attributes:
        name: unique within its registry.
        about: what must hold, in a few words.
        function: from a case to one result, or to a result for each fault.
        traits: what all its results have in common.
    """

    def __init__(
        self,
        name: str,
        about: str,
        function: Callable[[CaseT], Result | Iterable[Result]],
        traits: Traits,
    ) -> None:
        self.name, self.about, self.function, self.traits = name, about, function, traits

    def __call__(self, case: CaseT) -> Iterator[Result]:
        """Make the check and yield its results, each with the name and the traits of the check."""
        given, traits = self.function(case), self.traits
        for result in (given,) if isinstance(given, Result) else given:
            is_mild = result.outcome == "failed" and traits.severity == "warning"
            yield result._replace(
                outcome="warning" if is_mild else result.outcome,
                name=self.name,
                cause=result.cause or traits.cause,
                fix=result.fix or traits.fix,
                source=result.source or traits.source,
            )

    def only(self, case: CaseT) -> Result:
        """Make a check that has exactly one result; an error of ours counts as a failure."""
        try:
            (result,) = self(case)
        except ToolkitError as error:
            result = failed(error.cause, next_step(error))._replace(name=self.name)
        return result


def check(
    name: str, about: str = "", **traits: Any
) -> Callable[[Callable[[CaseT], Result | Iterable[Result]]], Check[CaseT]]:
    """Turn a function into a check.

    Args:
        name: of the check, unique within its registry.
        about: what must hold, in a few words.
        traits: fields of ``Traits``.
    """
    return lambda function: Check(name, about, function, Traits(**traits))


class Registry(Generic[CaseT]):
    """The checks of a package, found in its modules when they are first needed."""

    def __init__(self, package: str) -> None:
        self._package = package

    @cached_property
    def checks(self) -> dict[str, Check[CaseT]]:
        """The checks by name, in their order; equal ones as their modules have them."""
        ordered = sorted(self._find(), key=lambda check: check.traits.order)
        named = {check.name: check for check in ordered}
        assert len(named) == len(ordered), f"two checks of {self._package} have one name"
        return named

    def _find(self) -> Iterator[Check[CaseT]]:
        """Yield the checks in variables of the modules: a check, or a table of them."""
        for module in modules(self._package):
            for value in vars(module).values():
                for item in value if isinstance(value, tuple) else (value,):
                    if isinstance(item, Check):
                        yield item

    def results(self, case: CaseT, names: Collection[str] | None = None) -> Iterator[Result]:
        """Make all checks, or those with these names, and yield every result."""
        for name, check in self.checks.items():
            if names is None or name in names:
                yield from check(case)
