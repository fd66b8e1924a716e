"""Read the output of a build line by line: steps, results and a full disk. Pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from toolkit.images.recipe.plan import STEP
from toolkit.images.recipe.protection import CONFLICT
from toolkit.images.store.contents import is_listed
from toolkit.images.verify.own_checks import Results

TAIL = 15  # lines of the log that a failure shows

_STEP = re.compile(re.escape(STEP) + r"([^ :]+): ")
_PACKING = "INFO:    Creating SIF file"
_NO_SPACE = "no space left on device"


@dataclass
class Reader:
    """Follow a build.

    Attributes:
        steps: The names of the coming steps that a program says begin, in order. Only the next one
            is believed.
        step: The current step: ``base``, a step of the recipe, ``checks`` or ``pack``.
        command: The last command that the step began.
        no_space: A file system was full.
        conflict: The packages that a step of pip could not install beside the protected ones.
    """

    steps: list[str] = field(default_factory=list)
    step: str = "base"
    command: str = ""
    no_space: bool = False
    conflict: str = ""
    results: Results = field(default_factory=Results)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def enter(self, step: str) -> None:
        """Begin a step."""
        self.step, self.command, self.no_space, self.conflict = step, "", False, ""
        self.tail.clear()

    def feed(self, line: str) -> Literal["step", "check"] | None:
        """Take a line without its end; return whether a step began or a check ended."""
        if self.step == "checks" and is_listed(line):  # what an image lists of itself
            self.results.feed(line)
            return None
        begun = _STEP.match(line)
        name = "pack" if line.startswith(_PACKING) else begun[1] if begun else ""
        if name and self.steps[:1] == [name]:
            self.enter(self.steps.pop(0))
            return "step"
        self.no_space = self.no_space or _NO_SPACE in line.lower()
        if line.startswith("+ ") and self.step not in ("base", "checks", "pack"):
            self.command = line[2:]
        if line.startswith(CONFLICT):
            self.conflict = line.removeprefix(CONFLICT)
        if line.strip():
            self.tail.append(line)
        return "check" if self.step == "checks" and self.results.feed(line) else None
