"""Wait for a Slurm controller that restarts: for seconds or minutes, within a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from toolkit.errors import SlurmSilentError, UsageError
from toolkit.units import human_time

PATIENCE = 300.0  # seconds; a restart of the controller or a takeover by its backup is faster
VARIABLE = "TOOLKIT_WAIT_FOR_SLURM"
PAUSE = 2.0  # seconds between two queries

Notify = Callable[[str], object]
_Answer = TypeVar("_Answer")


class Wait:
    """The patience of one command with a silent controller.

    Args:
        seconds: how long to repeat a query, each time that the controller falls silent; 0: no
            repetition.
        notify: is called once with a message when the waiting begins.
    """

    def __init__(self, seconds: float = 0.0, notify: Notify = bool) -> None:
        self.seconds = seconds
        self.notify = notify
        self._until: float | None = None

    def reset(self) -> None:
        """Record that Slurm answered."""
        self._until = None

    def pause(self, error: SlurmSilentError) -> None:
        """Wait a moment after an unanswered query, and return so that the caller repeats it.

        Raises:
            SlurmSilentError: Slurm has been silent for too long.
        """
        now = time.monotonic()
        if self._until is None:
            self._until = now + self.seconds
            if self.seconds:
                self.notify(f"{error.cause}; asking again for {human_time(self.seconds)}")
        if now >= self._until:
            raise _given_up(error, self.seconds) from None
        time.sleep(min(PAUSE, self._until - now))


def configured_wait(notify: Notify) -> Wait:
    """Return the patience that the environment sets, or the default of `toolkit run`.

    It is for callers that have no option for it.

    Raises:
        UsageError: the variable is not a number of seconds.
    """
    value = os.environ.get(VARIABLE)
    if value is None:
        return Wait(PATIENCE, notify)
    if not value.isdecimal():
        raise UsageError(
            f"{value!r} is not a number of seconds",
            place=VARIABLE,
            next_step=f"{VARIABLE}={PATIENCE:g}",
        )
    return Wait(int(value), notify)


def _given_up(error: SlurmSilentError, seconds: float) -> SlurmSilentError:
    """Return the error with the time that was waited."""
    if not seconds:
        return error
    return type(error)(
        f"{error.cause}; the query was repeated for {human_time(seconds)}",
        place=error.place,
        details=error.details,
        next_step=error.next_step,
    )


def patiently(ask: Callable[[], _Answer], wait: Wait) -> _Answer:
    """Call ``ask`` until Slurm answers, and return its answer.

    ``ask`` must only read: a repeated action could act twice.

    Raises:
        SlurmSilentError: Slurm was silent for longer than the patience of ``wait``.
    """
    while True:
        try:
            answer = ask()
        except SlurmSilentError as error:
            wait.pause(error)
        else:
            wait.reset()
            return answer
