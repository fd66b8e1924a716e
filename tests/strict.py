"""A pytest plugin for continuous integration (`-p tests.strict`): a skipped test is a failed one.

Where Slurm or Apptainer could not be installed tests would otherwise pass by not running. Those of
tests/gpu need a machine of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FREE = Path(__file__).with_name("gpu")


def _forbid(report: pytest.TestReport | pytest.CollectReport, path: Path) -> None:
    if (
        report.outcome == "skipped"
        and not hasattr(report, "wasxfail")
        and not path.is_relative_to(_FREE)
    ):
        reason: Any = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed in CI: {reason[2] if isinstance(reason, tuple) else reason}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    _forbid(outcome.get_result(), item.path)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    outcome: Any = yield
    _forbid(outcome.get_result(), collector.path)
