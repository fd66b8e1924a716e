"""The manual steps of published guides, our command for each, and its last measured result.

The rows are in ``jobs/coverage.toml``, what was measured in ``jobs/measured.json``; the README's
table is made of both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

import click

from toolkit.cli import console
from toolkit.cli.main import main
from toolkit.model.base import Model

_LONG = re.compile(r"(\.\d{4})\d+")  # digits that no reader wants


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

    @property
    def commands(self) -> dict[str, Row]:
        """Return the rows to run, each command once: rows that share one must agree about it."""
        return {row.command: row for guide in self.guides for row in guide.rows if not row.own_test}


class Measured(Model, frozen=True, kw_only=True):
    """The measured result of a command.

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


def judged(row: Row, code: int, output: str) -> tuple[dict[str, str], str]:
    """Return the result in an output, and the reason why it is not accepted (empty if it is)."""
    if code != 0:
        return {}, f"it ended with {code}"
    match = re.search(row.expect, output, re.MULTILINE | re.DOTALL)
    if match is None:
        return {}, f"its output does not match {row.expect}"
    return {
        name.replace("_", " "): value
        for name, value in match.groupdict().items()
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
            output = (
                ", ".join(
                    f"{name} {value}" if name != "said" else value
                    for name, value in known.result.items()
                )
                if known
                else ""
            )
            output = _LONG.sub(r"\1", output)
            yield (
                f"`{row.program} {row.command}`".replace("|", r"\|"),
                row.step,
                row.by_hand.replace("|", r"\|"),
                time,
                output or ("done" if known else ""),
            )


CLUSTER = "coverage"
_UP = ("cluster", "up", "--name", CLUSTER, "--nodes", "2", "--gpus-per-node", "4")
_DOWN = ("cluster", "down", "--name", CLUSTER)
_PATIENCE = 1800.0  # seconds for one command


@click.command("coverage")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--write",
    is_flag=True,
    help="Keep what was measured in jobs/measured.json; the table of docs/guides.md is made of it.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    context: click.Context, patterns: tuple[str, ...], write: bool, dry_run: bool, as_json: bool
) -> None:
    """Run our command for each step of the published guides, on a local cluster of 2 nodes.

    PATTERN: only commands that contain it. A command counts if it exits with 0 and its output
    matches; the exit code is 1 if a command fails.

    \b
    Examples:
      python -m benchmarks.coverage --dry-run
      python -m benchmarks.coverage jobs/digits-horovod
      python -m benchmarks.coverage --write
    """
    coverage, known = read()
    rows = {
        name: row
        for name, row in coverage.commands.items()
        if not patterns or any(result in name for result in patterns)
    }
    if dry_run:
        for name in rows:
            console.out(f"toolkit {name}")
        return
    wrong: dict[str, str] = {}
    os.environ["TOOLKIT_CLUSTER"] = CLUSTER
    _call(_UP)
    try:
        for name, row in rows.items():
            measured, complaint = _run(row)
            # A success of the past is no result of a command that fails now.
            known.pop(name, None)
            if complaint:
                wrong[name] = complaint
            else:
                known[name] = measured
            _keep(
                {name: result for name, result in known.items() if name in coverage.commands},
                write=write,
            )
    finally:
        _call(_DOWN)
    _show({name: known[name] for name in rows if name not in wrong}, wrong, as_json)
    context.exit(1 if wrong else 0)


def read() -> tuple[Coverage, dict[str, Measured]]:
    """Return the rows and their measured results."""
    from toolkit.config import shipped
    from toolkit.files import read_json, read_toml

    path = shipped("jobs") / "measured.json"
    measures = read_json(path, Measures) if path.exists() else Measures()
    return read_toml(shipped("jobs") / "coverage.toml", Coverage), dict(measures.commands)


def _call(words: tuple[str, ...]) -> tuple[int, str, float]:
    """Run one of our commands in its own process; return exit code, output and seconds."""
    import subprocess
    import sys
    import time

    began = time.monotonic()
    argv = [sys.executable, "-m", "toolkit", *words]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    return done.returncode, done.stdout, time.monotonic() - began


def _run(row: Row) -> tuple[Measured, str]:
    import shlex
    from datetime import datetime, timezone

    for before in row.before:
        code, output, _ = _call(tuple(shlex.split(before)))
        if code != 0:
            return Measured(
                seconds=0
            ), f"before it, toolkit {before} ended with {code}: {output[-500:]}"
    with console.Steps() as steps:
        steps.begin("run", f"toolkit {row.command}")
        code, output, seconds = _call(tuple(shlex.split(row.command)))
        result, wrong = judged(row, code, output)
        steps.end("failed" if wrong else "done")
        if wrong:
            steps.say("wrong", f"{wrong}: {output[-1500:]}")
    machine = f"{os.cpu_count()} CPU cores, no GPU"
    now = datetime.now(timezone.utc).date().isoformat()
    return Measured(seconds=round(seconds, 1), result=result, when=now, machine=machine), wrong


def _keep(known: Mapping[str, Measured], *, write: bool) -> None:
    """After each command, so that what was measured is not lost when a later one is stopped."""
    from toolkit.config import shipped
    from toolkit.files import write_atomically
    from toolkit.model.base import to_json

    if write:
        write_atomically(shipped("jobs") / "measured.json", to_json(Measures(commands=dict(known))))


def _show(measured: Mapping[str, Measured], wrong: Mapping[str, str], as_json: bool) -> None:

    if as_json:
        import msgspec

        console.out_json({"measured": msgspec.to_builtins(dict(measured)), "wrong": dict(wrong)})
        return
    rows = [
        (
            f"toolkit {name}",
            f"{result.seconds:.0f} s",
            ", ".join(map(" ".join, result.result.items())),
        )
        for name, result in measured.items()
    ]
    rows += [(f"toolkit {name}", "failed", output) for name, output in wrong.items()]
    console.out(console.table(("COMMAND", "TIME", "RESULT"), rows))


if __name__ == "__main__":
    main(command, "python -m benchmarks.coverage")
