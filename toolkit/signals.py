"""Signals: which one an exit code stands for, and those that interrupt a program like Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Those whose default action ends a process, by signal(7), without the real-time ones, which no
# program of the field uses: other codes above 128 are a program's own, such as 255 of exit(-1).
_ENDING = frozenset((*range(1, 16), *range(24, 28), *range(29, 32)))


def signal_of(exit_code: int) -> int:
    """Return the signal of which a shell's exit code (128 + n) tells, or 0."""
    return exit_code - 128 if exit_code - 128 in _ENDING else 0


@contextmanager
def interrupted_by_signals() -> Iterator[list[int]]:
    """Have a closed terminal and SIGTERM act as Ctrl-C; what nohup(1) ignores stays ignored.

    Only the main thread can change this; in another one nothing changes.

    Yields:
        The numbers of the signals that have come, which grow with each.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    caught = {number: old for number, old in before.items() if old != signal.SIG_IGN}
    for number in caught:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)
