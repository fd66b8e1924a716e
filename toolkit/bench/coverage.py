"""The steps that guides ask people to do by hand, the command that does each here, and how that went when it was last run. Pure.

The rows are in ``jobs/coverage.toml``, what was measured in ``jobs/measured.json``; the README's
table is made of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from toolkit.model.base import Model

_LONG = re.compile(r"(\.\d{4})\d+")  # digits that no reader wants


class Row(Model, frozen=True, kw_only=True):
    """A step of a guide.

    Attributes:
        step: what the guide is about there.
        by_hand: what it asks people to type.
        command: that does it here; without the program.
        program: that the command is of.
        expect: a regular expression that the command's output has to match, else it has failed. Its named groups are the result that the
            table shows, a group ``a_b`` as "a b".
        before: commands that have to run first; only their exit code counts.
        own_test: it takes a terminal, or more than the command line's own packages: a test of its own runs it.
    """

    step: str
    by_hand: str
    command: str
    expect: str = ""
    before: tuple[str, ...] = ()
    program: str = "toolkit"
    own_test: bool = False


class Guide(Model, frozen=True, kw_only=True):
    """A document that people follow."""

    title: str
    rows: tuple[Row, ...]


class Coverage(Model, frozen=True, kw_only=True):
    """Every guide."""

    guides: tuple[Guide, ...]

    @property
    def commands(self) -> dict[str, Row]:
        """What has to be run, each command once: rows that share one must agree about it."""
        return {row.command: row for guide in self.guides for row in guide.rows if not row.own_test}


class Measured(Model, frozen=True, kw_only=True):
    """How a command went.

    Attributes:
        seconds: from the command to its end, the time in the queue included.
        result: by name, as its output said.
        when: the day, ISO 8601.
        machine: what it ran on.
    """

    seconds: float
    result: dict[str, str] = {}
    when: str = ""
    machine: str = ""


class Measures(Model, frozen=True, kw_only=True):
    """What is kept: by command."""

    commands: dict[str, Measured] = {}


def judged(row: Row, code: int, output: str) -> tuple[dict[str, str], str]:
    """The result that an output tells, and what is wrong with it; empty: nothing."""
    if code != 0:
        return {}, f"it ended with {code}"
    found = re.search(row.expect, output, re.MULTILINE | re.DOTALL)
    if found is None:
        return {}, f"its output does not match {row.expect}"
    return {
        name.replace("_", " "): value
        for name, value in found.groupdict().items()
        if value is not None
    }, ""


def table(coverage: Coverage, measured: Mapping[str, Measured]) -> str:
    """Markdown: a row for each step."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _cells(coverage, measured))


def _cells(coverage: Coverage, measured: Mapping[str, Measured]) -> Iterator[Sequence[str]]:
    for guide in coverage.guides:
        for row in guide.rows:
            known = measured.get(row.command)
            time = (
                f"{known.seconds:.0f} s, {known.when}"
                if known
                else "its test"
                if row.own_test
                else "not yet"
            )
            said = (
                ", ".join(
                    f"{name} {value}" if name != "said" else value
                    for name, value in known.result.items()
                )
                if known
                else ""
            )
            said = _LONG.sub(r"\1", said)
            yield (
                f"`{row.program} {row.command}`".replace("|", r"\|"),
                row.step,
                row.by_hand.replace("|", r"\|"),
                time,
                said or ("done" if known else ""),
            )
