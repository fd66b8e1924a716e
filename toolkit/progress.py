"""The interface by which long tasks report their progress without printing.

The command line passes a ``Progress`` in.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the steps of a long task, one after the other."""

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        """Begin a step, which ends the one before.

        ``expected`` is the duration of the step the last time, in seconds.
        """

    def end(self, outcome: str = "done") -> None:
        """End the current step: ``done``, ``failed``, ``kept``, ..."""

    def say(self, subject: str, text: str) -> None:
        """Show a line that is not a step: ``say("queued", "job 7, partition main")``."""


class Silent:
    """A ``Progress`` for callers that show nothing."""

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        """Show nothing."""
        del step, detail, expected

    def end(self, outcome: str = "done") -> None:
        """Show nothing."""
        del outcome

    def say(self, subject: str, text: str) -> None:
        """Show nothing."""
        del subject, text
