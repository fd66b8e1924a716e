"""Run our command for each manual step of published guides: `make test-jobs`.

The rows are in ``jobs/coverage.toml``, what was measured in ``jobs/measured.json``; the table of
docs/guides.md is made of both. A command counts if it exits with 0 and its output matches.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from benchmarks import runner
from toolkit.config import shipped
from toolkit.files import read_json, read_toml, write_atomically
from toolkit.model.base import Model, to_json

_LONG = re.compile(r"(\.\d{4})\d+")  # digits that no reader wants
_MEASURED = shipped("jobs") / "measured.json"


class Row(Model, frozen=True, kw_only=True):
    """A step of a guide.

    Attributes:
        step: what the guide is about there.
        by_hand: what it asks people to type.
        command: that does it here; without the program.
        program: that the command is of.
        expect: a regular expression that the command's output has to match, else it has failed. Its
            named groups are the result that the table shows, a group ``a_b`` as "a b".
        before: commands that have to run first; only their exit code counts.
        own_test: a test of its own runs it, because it needs a terminal, or more than the command
            line's own packages.
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


class Measured(Model, frozen=True, kw_only=True):
    """The result of a command that was run.

    Attributes:
        seconds: from the command to its end, the time in the queue included.
        result: by name, as in its output.
        when: the day, ISO 8601.
        machine: what it ran on.
    """

    seconds: float
    result: dict[str, str] = {}
    when: str = ""
    machine: str = ""


class Measures(Model, frozen=True, kw_only=True):
    """All measured results, by command."""

    commands: dict[str, Measured] = {}


def read() -> tuple[Coverage, dict[str, Measured]]:
    """Return the rows and their measured results."""
    measures = read_json(_MEASURED, Measures) if _MEASURED.exists() else Measures()
    return read_toml(shipped("jobs") / "coverage.toml", Coverage), dict(measures.commands)


def table(coverage: Coverage, measured: Mapping[str, Measured]) -> str:
    """Return the rows of a table in Markdown, one for each step."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _cells(coverage, measured))


def _cells(coverage: Coverage, measured: Mapping[str, Measured]) -> Iterator[tuple[str, ...]]:
    for row in (row for guide in coverage.guides for row in guide.rows):
        when, output = ("its test" if row.own_test else "not yet"), ""
        if known := measured.get(row.command):
            when = f"{known.seconds:.0f} s, {known.when}"
            values = known.result.items()
            words = (value if name == "said" else f"{name} {value}" for name, value in values)
            output = _LONG.sub(r"\1", ", ".join(words)) or "done"
        command, by_hand = f"`{row.program} {row.command}`", row.by_hand
        yield command.replace("|", r"\|"), row.step, by_hand.replace("|", r"\|"), when, output


def run(row: Row) -> tuple[Measured, str]:
    """Run a row's commands; return the result, and why it is not accepted (empty if it is)."""
    for words in (*row.before, row.command):
        began = time.monotonic()
        done = subprocess.run(
            (*runner.TOOLKIT, *shlex.split(words)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1800,
        )
        if done.returncode != 0:
            break
    seconds = round(time.monotonic() - began, 1)
    match = re.search(row.expect, done.stdout, re.MULTILINE | re.DOTALL)
    if done.returncode != 0 or match is None:
        why = f"toolkit {words}: exit code {done.returncode}, its output matches {row.expect}?"
        return Measured(seconds=seconds), f"{why} {done.stdout[-1500:]}"
    groups = match.groupdict().items()
    result = {name.replace("_", " "): value for name, value in groups if value is not None}
    today = datetime.now(timezone.utc).date().isoformat()
    machine = f"{os.cpu_count()} CPU cores, no GPU"
    return Measured(seconds=seconds, result=result, when=today, machine=machine), ""


def main() -> int:
    """Run the commands; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="only commands that contain one of these")
    parser.add_argument("--write", action="store_true", help=f"keep the results in {_MEASURED}")
    given = parser.parse_args()
    coverage, known = read()
    rows = {row.command: row for guide in coverage.guides for row in guide.rows if not row.own_test}
    chosen = [name for name in rows if any(part in name for part in given.patterns or [""])]
    shown = []
    with runner.cluster(shipped("jobs"), "--nodes", "2", "--gpus-per-node", "4"):
        for name in chosen:
            result, wrong = run(rows[name])
            # A success of the past is no result of a command that fails now.
            known = {old: value for old, value in known.items() if old in rows and old != name}
            if not wrong:
                known[name] = result
            if given.write:  # after each, so that nothing is lost when a later one is stopped
                write_atomically(_MEASURED, to_json(Measures(commands=known)))
            print(f"{name}: {wrong or 'done'}", flush=True)
            values = ", ".join(map(" ".join, result.result.items()))
            shown.append(runner.Row(name, f"{result.seconds:.0f} s", values, "exit 0", not wrong))
    return runner.report(shown)


if __name__ == "__main__":
    sys.exit(main())
