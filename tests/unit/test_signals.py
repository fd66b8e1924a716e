"""Signals that interrupt a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.samples import make_case
from toolkit.planning.plan import decide
from toolkit.runs import submit
from toolkit.runs.run import Run
from toolkit.shell import interrupted_by_signals


def test_a_hangup_that_nohup_ignores_closes_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupted_by_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "pty", "is_signaled"),
    [
        (signal.SIGHUP, True, True),
        (signal.SIGINT, True, True),
        (signal.SIGTERM, True, False),
        (signal.SIGHUP, False, False),
    ],
)
def test_salloc_has_the_signals_of_the_terminal_only(number, pty, is_signaled, monkeypatch):
    """A second signal would make salloc wait forever; one that it did not get must be sent to it."""
    released: list[bool] = []
    monkeypatch.setattr(submit, "_release", lambda *given: released.append(given[-1]))
    process: Any = SimpleNamespace(poll=lambda: None)
    run = Run(Path("x"))
    run.plan = decide(make_case({"interactive": True, "pty": pty}))
    with pytest.raises(KeyboardInterrupt), submit.released_after(run, process):
        os.kill(os.getpid(), number)
    assert released == [is_signaled]
