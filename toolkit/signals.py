"""Let the signals that end a program interrupt it as Ctrl-C does, so that it cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
