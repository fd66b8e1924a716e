"""Signals that interrupt a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from toolkit.signals import interrupted_by_signals


def test_a_hangup_that_nohup_ignores_closes_nothing() -> None:
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


def test_another_thread_than_the_first_changes_no_signal() -> None:
    before, inside = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with interrupted_by_signals():
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
