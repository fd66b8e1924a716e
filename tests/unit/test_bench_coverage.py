"""The steps of guides: each has a command that exists, and a result counts only if the output says it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import coverage as command
from benchmarks.coverage import Coverage, Guide, Measured, Measures, Row, judged, read, table
from toolkit.cli import main as cli
from toolkit.config import shipped
from toolkit.model.base import from_json

ROW = Row(step="s", by_hand="h", command="run x", expect=r'"accuracy": (?P<best_accuracy>0\.9\d*)')


def test_a_result_is_what_the_output_says() -> None:
    assert judged(ROW, 0, 'noise\n{"accuracy": 0.97}\n') == ({"best accuracy": "0.97"}, "")


@pytest.mark.parametrize(
    ("code", "output", "wrong"),
    [(0, '"accuracy": 0.1', "does not match"), (1, '"accuracy": 0.97', "ended with 1")],
)
def test_a_failure_is_no_result(code: int, output: str, wrong: str) -> None:
    result, complaint = judged(ROW, code, output)
    assert result == {}
    assert wrong in complaint


def test_the_table_says_what_was_not_measured() -> None:
    asks = Row(step="t", by_hand="i", command="shell", own_test=True)
    coverage = Coverage(guides=(Guide(title="g", rows=(ROW, asks)),))
    assert coverage.commands == {"run x": ROW}
    assert (
        table(coverage, {})
        == "| `toolkit run x` | s | h | not yet |  |\n| `toolkit shell` | t | i | its test |  |\n"
    )
    result = {"accuracy": "0.97", "ranks": "4"}
    known = {"run x": Measured(seconds=12.3, result=result, when="2026-11-21")}
    assert table(coverage, known).startswith(
        "| `toolkit run x` | s | h | 12 s, 2026-11-21 | accuracy 0.97, ranks 4 |\n"
    )


@pytest.mark.parametrize(
    "line",
    [row.command for guide in read()[0].guides for row in guide.rows if row.program == "toolkit"],
)
def test_every_command_is_one(line: str) -> None:
    """Its verb, its options and its exercise exist; that it works is measured by running it."""
    words = shlex.split(line)
    command: click.Command | None = cli.cli
    while isinstance(command, click.Group) and words:
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None, line
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    script = next(
        (number for number, word in enumerate(words) if word.startswith("jobs/")), len(words)
    )
    assert {word.split("=")[0] for word in words[:script] if word.startswith("-")} <= known, line
    for word in words:
        if word.startswith("jobs/"):
            assert (shipped("jobs").parent / word / "job.toml").is_file(), line


def test_what_is_expected_are_regular_expressions_of_rows_that_are_run() -> None:
    coverage, measured = read()
    for row in coverage.commands.values():
        assert re.search(row.expect, "") is None, f"{row.command} passes with no output"
    assert set(measured) <= set(coverage.commands)


def test_a_command_that_fails_loses_its_old_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Measured(seconds=1, when="2026-01-01")
    coverage = Coverage(guides=(Guide(title="g", rows=(ROW,)),))
    monkeypatch.setattr(command, "read", lambda: (coverage, {"run x": old}))
    monkeypatch.setattr(command, "_call", lambda words: (int("cluster" not in words), "", 1.0))
    monkeypatch.setattr("toolkit.config.shipped", {"jobs": tmp_path}.__getitem__)
    done = CliRunner().invoke(command.command, ["--write"])
    assert done.exit_code == 1
    assert from_json((tmp_path / "measured.json").read_text(), Measures).commands == {}
