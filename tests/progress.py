"""A ``Progress`` for callers that show nothing."""

from __future__ import annotations


class Silent:
    """Shows nothing of a long task."""

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        del step, detail, expected

    def end(self, outcome: str = "done") -> None:
        del outcome

    def say(self, subject: str, text: str) -> None:
        del subject, text
