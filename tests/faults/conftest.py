"""The table of faults, which is printed at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.tally import TABLE, Row, Tally

_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Row]:
    """The row of a test's fault, which its docstring's first line names. A trial that raises counts as a wrong verdict."""
    document = (request.function.__doc__ or request.node.name).splitlines()[0].rstrip(".")
    row = request.config.stash[_TALLY].of(document)
    before = (row.trials, row.failures)
    yield row
    report = request.node.stash.get(_FAILED, False)
    if report and row.failures == before[1]:
        row.trials += row.trials == before[0]
        row.wrong += 1


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call":
        item.stash[_FAILED] = report.failed


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the table; a whole run that passed writes it into the documentation."""
    tally = config.stash[_TALLY]
    if not tally.rows:
        return
    terminalreporter.section("injected faults")
    terminalreporter.write(tally.markdown().partition("| Fault")[2].join(["| Fault", ""]))
    if exitstatus == 0 and os.environ.get("WRITE_FAULTS"):
        Path(TABLE).parent.mkdir(exist_ok=True)
        Path(TABLE).write_text(tally.markdown())
