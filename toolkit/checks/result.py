"""The result of a check, and its forms as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from toolkit.errors import ToolkitError
from toolkit.model.base import Model

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
        label = "write" if result.edits else "next "
        details = (
            (f"    why   {result.cause}", result.cause),
            (f"    {label} {result.fix}", result.fix),
        )
        return [f"{head} [{result.name}]", *(line for line, text in details if text)]
