"""A controller that restarts is waited for: seconds or minutes, and not for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from toolkit.errors import SlurmSilentError, UsageError
from toolkit.units import human_time

PATIENCE = 300.0  # seconds; a controller that is restarted or taken over by its backup is there again by then
VARIABLE = "TOOLKIT_WAIT_FOR_SLURM"
PAUSE = 2.0  # seconds between two questions

Tell = Callable[[str], object]
_Answer = TypeVar("_Answer")


class Wait:
    """So much patience, for all that is asked of Slurm on the way to one run.

    Args:
        seconds: how long a silent controller is asked again, each time that it falls silent; 0: not at all.
        tell: is told once when the waiting begins.
    """

    def __init__(self, seconds: float = 0.0, tell: Tell = bool) -> None:
        self.seconds = seconds
        self.tell = tell
        self._until: float | None = None

    def heard(self) -> None:
        """Slurm answered."""
        self._until = None

    def on(self, error: SlurmSilentError) -> None:
        """Slurm did not answer: wait a moment, and return to ask again.

        Raises:
            SlurmSilentError: it has been silent for too long.
        """
        now = time.monotonic()
        if self._until is None:
            self._until = now + self.seconds
            if self.seconds:
                self.tell(f"{error.cause}; asking again for {human_time(self.seconds)}")
        if now >= self._until:
            raise given_up(error, self.seconds) from None
        time.sleep(min(PAUSE, self._until - now))


def asked(tell: Tell) -> Wait:
    """For who cannot be given an option: as patient as the environment says, and as `toolkit run` is where it says nothing.

    Raises:
        UsageError: the environment says no number of seconds.
    """
    said = os.environ.get(VARIABLE)
    if said is None:
        return Wait(PATIENCE, tell)
    if not said.isdecimal():
        raise UsageError(
            f"{said!r} is no number of seconds",
            place=VARIABLE,
            next_step=f"{VARIABLE}={PATIENCE:g}",
        )
    return Wait(int(said), tell)


def given_up(error: SlurmSilentError, seconds: float) -> SlurmSilentError:
    """``error``, with how long was waited."""
    if not seconds:
        return error
    return type(error)(
        f"{error.cause}; it was asked for {human_time(seconds)}",
        place=error.place,
        details=error.details,
        next_step=error.next_step,
    )


def patiently(ask: Callable[[], _Answer], wait: Wait) -> _Answer:
    """What ``ask`` answers, asked again while Slurm is silent. It must be a question: what acts could act twice.

    Raises:
        SlurmSilentError: Slurm was silent for longer than ``wait`` has patience.
    """
    while True:
        try:
            answer = ask()
        except SlurmSilentError as error:
            wait.on(error)
        else:
            wait.heard()
            return answer
