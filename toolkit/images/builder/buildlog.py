"""Read the output of a build line by line: the current command, results and a full disk. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from toolkit.images.store.contents import is_listed
from toolkit.images.verify.own_checks import Results

TAIL = 15  # lines of the log that a failure shows

_NO_SPACE = "no space left on device"


@dataclass
class Reader:
    """Follow a build.

    Attributes:
        step: The current step: ``base``, a step of the recipe, ``checks`` or ``pack``.
        command: The last command that the step began.
        no_space: A file system was full.
    """

    step: str = "base"
    command: str = ""
    no_space: bool = False
    results: Results = field(default_factory=Results)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def enter(self, step: str) -> None:
        """Begin a step."""
        self.step, self.command, self.no_space = step, "", False
        self.tail.clear()

    def feed(self, line: str) -> bool:
        """Take a line without its end; return whether a check ended."""
        if self.step == "checks" and is_listed(line):  # what an image lists of itself
            self.results.feed(line)
            return False
        self.no_space = self.no_space or _NO_SPACE in line.lower()
        if line.startswith("+ ") and self.step not in ("base", "checks", "pack"):
            self.command = line[2:]
        if line.strip():
            self.tail.append(line)
        return self.step == "checks" and self.results.feed(line) is not None
