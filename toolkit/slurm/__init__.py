"""Slurm's versions, and patience with a controller that does not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from toolkit.errors import SlurmSilentError, UsageError
from toolkit.units import human_time

# Version -> how it was tested. All of tests/cluster ran with these, on the Debian release that
# `make test-slurm` names; of the others, built from their sources, the answers of the commands are
# examples for the tests (tests/golden/slurm), and tests/cluster/test_slurm_client.py ran.
TESTED = {
    **dict.fromkeys(("22.05", "24.11", "26.05"), "tested with all tests"),
    **dict.fromkeys(("23.02", "23.11", "24.05", "25.05", "25.11"), "tested: the commands for jobs"),
}

PATIENCE = 300.0  # seconds; a restart of the controller or a takeover by its backup is faster
VARIABLE = "TOOLKIT_WAIT_FOR_SLURM"
PAUSE = 2.0  # seconds between two queries

Notify = Callable[[str], object]
_Answer = TypeVar("_Answer")


class Wait(NamedTuple):
    """The patience of one command with a silent controller.

    Attributes:
        seconds: how long to repeat a query, each time that the controller falls silent; 0: no
            repetition.
        notify: is called once with a message when the waiting begins.
    """

    seconds: float = 0.0
    notify: Notify = bool


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


def patiently(ask: Callable[[], _Answer], wait: Wait) -> _Answer:
    """Call ``ask`` until Slurm answers, and return its answer.

    ``ask`` must only read: a repeated action could act twice.

    Raises:
        SlurmSilentError: Slurm was silent for longer than the patience of ``wait``.
    """
    until = None
    while True:
        try:
            return ask()
        except SlurmSilentError as error:
            now = time.monotonic()
            if not wait.seconds:
                raise
            if until is None:
                until = now + wait.seconds
                wait.notify(f"{error.cause}; asking again for {human_time(wait.seconds)}")
            if now >= until:
                raise type(error)(
                    f"{error.cause}; the query was repeated for {human_time(wait.seconds)}",
                    place=error.place,
                    details=error.details,
                    next_step=error.next_step,
                ) from None
            time.sleep(min(PAUSE, until - now))
