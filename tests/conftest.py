"""Fixtures for every test live beside what they are about; here they are only named."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections import Counter

import pytest
from _pytest.terminal import TerminalReporter

pytest_plugins = [
    *"tests.cluster.image_fixtures tests.cluster.cluster_fixtures".split(),
    *"tests.cluster.engine_fixtures tests.cluster.docked_fixtures".split(),
    "tests.cluster.runtime_fixtures",
    "tests.cluster.standins",
    "tests.unit.run_fixtures",
    "tests.unit.workshop_fixtures",
]
pytest.register_assert_rewrite(
    "tests.cluster.contained"
)  # no fixtures, but what several tests assert

# A shell that starts us in the background has us ignore Ctrl-C, and so would everything that the
# tests start and send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with a hang-up: the tests go on, and what they start has the default again.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# The index of runs of these tests is not the user's, and what /etc/toolkit says is not for them.
_STATE = tempfile.mkdtemp(prefix="toolkit-state-")
os.environ["XDG_STATE_HOME"] = _STATE
os.environ["TOOLKIT_ETC"] = f"{_STATE}/etc"
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: files with slow tests, then those with the most."""
    count = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -count[item.path]))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Name each test that took over a minute and does not say why."""
    for report in terminalreporter.getreports("passed"):
        if report.when == "call" and report.duration > 60 and "slow" not in report.keywords:
            line = f"{report.duration:.0f} s, and it does not say why (slow): {report.nodeid}"
            terminalreporter.write_line(line, yellow=True)
