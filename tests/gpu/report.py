"""Write what was seen on a GPU as a report that can be cited: build/gpu-report.md and .json."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gpu.facts import gather, output

_WORDS = {"passed": "PASS", "failed": "FAIL", "skipped": "not run"}


class Check(NamedTuple):
    """One test: what it shows, how it ended, and the figures or the reason."""

    title: str
    way: str
    outcome: str
    detail: str


class Report:
    """The plugin of pytest that gathers the checks."""

    def __init__(self, directory: Path) -> None:
        """Take the directory of the report."""
        self.directory = directory
        self.titles: dict[str, str] = {}
        self.checks: list[Check] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what each test says that it shows."""
        for item in items:
            described = getattr(item, "function", None)
            self.titles[item.nodeid] = (getattr(described, "__doc__", None) or item.name).strip()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test once: at its call, or where its fixtures failed or left it out."""
        if report.when != "call" and report.outcome == "passed":
            return
        detail = "; ".join(f"{name} {value}" for name, value in report.user_properties)
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            detail = report.longrepr[2].removeprefix("Skipped: ")
        if report.outcome == "failed":
            detail = report.longreprtext.strip().splitlines()[-1]
        way = report.nodeid.partition("[")[2].rstrip("]")
        title = self.titles.get(report.nodeid, report.nodeid)
        self.checks.append(Check(title, way, _WORDS[report.outcome], detail))

    def pytest_sessionfinish(self) -> None:
        """Write both files."""
        if not self.checks:
            return
        machine = gather().rows()
        made: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "commit": output("git", "rev-parse", "--short", "HEAD"),
            "machine": dict(machine),
            "checks": [check._asdict() for check in self.checks],
        }
        self.directory.mkdir(exist_ok=True)
        text = json.dumps(made, indent=2) + "\n"
        (self.directory / "gpu-report.json").write_text(text, encoding="utf-8")
        (self.directory / "gpu-report.md").write_text(_page(made), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where the report is, and how much was not run."""
        counts = dict.fromkeys(_WORDS.values(), 0)
        for check in self.checks:
            counts[check.outcome] += 1
        said = ", ".join(f"{count} {word}" for word, count in counts.items())
        terminalreporter.write_line(f"report   {self.directory / 'gpu-report.md'}: {said}")


def _page(made: dict[str, Any]) -> str:
    head = f"# Seen on a GPU, {made['date']}, commit {made['commit']}"
    machine = [f"- {name}: {value}" for name, value in made["machine"].items()]
    rows = [
        "| " + " | ".join(_cell(check[key]) for key in Check._fields) + " |"
        for check in made["checks"]
    ]
    table = ["| Check | Started by | Outcome | Figures or reason |", "|---|---|---|---|", *rows]
    return "\n".join([head, "", "By `make test-gpu`.", "", *machine, "", *table]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
