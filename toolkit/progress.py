"""How modules that act for long tell how far they are, without printing: the command line passes a ``Progress`` in."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the steps of a long task, one after the other."""

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        """A step starts; ends the one before. ``expected`` is how many seconds it took the last time."""

    def end(self, outcome: str = "done") -> None:
        """The current step is over: ``done``, ``failed``, ``kept``, ..."""

    def say(self, subject: str, text: str) -> None:
        """A line that is no step: ``say("queued", "job 7, partition main")``."""


class Silent:
    """A ``Progress`` for callers that show nothing."""

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        del step, detail, expected

    def end(self, outcome: str = "done") -> None:
        del outcome

    def say(self, subject: str, text: str) -> None:
        del subject, text
