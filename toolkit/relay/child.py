"""A process beside this one, such as a relay beside a shell, that ends with it."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType

_PATIENCE = 10.0  # seconds for it to end its connections
_PAUSE = 0.05


class Child:
    """A function in a process of its own.

    It does not see the signals of the terminal. It ends when ``end`` is called, or when this
    process is gone, also if that was killed: then a pipe that only this process holds is closed.
    """

    def __init__(self) -> None:
        self._number = 0
        self._lifeline = -1

    def start(self, function: Callable[[], None]) -> None:
        """Run a function; ``KeyboardInterrupt`` is raised in it when it has to end."""
        reader, self._lifeline = os.pipe()
        self._number = os.fork()
        if self._number:
            os.close(reader)
            return
        try:
            os.close(self._lifeline)
            _end_after(reader)
            function()
        except KeyboardInterrupt:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # what this process would do at its end is the parent's to do

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the process, if it was started, and wait for that."""
        if not self._number:
            return
        number, self._number = self._number, 0
        os.close(self._lifeline)
        until = time.monotonic() + _PATIENCE
        while not os.waitpid(number, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
                return
            time.sleep(_PAUSE)


def _end_after(lifeline: int) -> None:
    """Raise ``KeyboardInterrupt`` in the main thread on SIGTERM, and at the end of a pipe."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise KeyboardInterrupt

    def watch() -> None:
        os.read(lifeline, 1)
        signal.pthread_kill(main, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    main = threading.get_ident()
    threading.Thread(target=watch, daemon=True).start()
