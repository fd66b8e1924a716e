"""Read the output of a build line by line: steps, results and the place of a failure. Pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.plan import STEP
from toolkit.images.recipe.protection import CONFLICT, FITS, parse_names
from toolkit.images.store.contents import is_listed
from toolkit.images.verify.own_checks import Results

TAIL = 15  # lines of the log that a failure shows

_STEP = re.compile(re.escape(STEP) + r"(?P<name>[^ :]+): (?P<detail>.*)")
_PACKING = "Creating SIF file"
_NOISE = ("Non-gzip squashfs compression", "To see mksquashfs output")
# As pip explains a conflict.
_REASON = re.compile(r" {4}(?P<text>\S.{0,300}(?: depends on |\(constraint\) ).{1,300})")
_INDEX = " --extra-index-url "
_NO_SPACE = "no space left on device"


def pin_fitting(requirements: str, fits: tuple[str, ...]) -> tuple[str, ...]:
    """Return requirements with the versions that fit.

    Args:
        requirements: Requirements, separated by commas: ``torchvision==0.29.2``.
        fits: Names and versions as pip writes them: ``torchvision-0.28.0``.
    """
    pairs = (package.rpartition("-") for package in fits)
    versions = {normalize_name(name): version for name, _, version in pairs}
    names = parse_names(requirements.split(", "))
    return tuple(f"{name}=={versions[name]}" for name in names if name in versions)


@dataclass
class Reader:
    """Follow a build.

    Attributes:
        steps: The names of the coming steps that a program says begin, in order: those of %post,
            and ``pack``. Only the next one is believed; none, while a program with messages runs.
        step: The current step: ``base``, a step of %post, ``checks`` or ``pack``.
        command: The last command that %post began.
        no_space: A file system was full.
        conflict: The packages that a step of pip could not install beside the protected ones; empty
            without such a conflict.
        reasons: pip's reasons for the conflict.
        index: The further package index that a step of pip used.
        fits: What pip would install instead, each with its version: ``torchvision-0.28.0``.
    """

    steps: list[str]
    step: str = "base"
    command: str = ""
    no_space: bool = False
    conflict: str = ""
    reasons: list[str] = field(default_factory=list)
    index: str = ""
    fits: tuple[str, ...] = ()
    results: Results = field(default_factory=Results)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def enter(self, step: str) -> None:
        """Begin a step that the build itself does not announce."""
        if step != self.step:
            self.step, self.command, self.no_space, self.conflict = step, "", False, ""
            self.tail.clear()
            self.reasons.clear()

    def feed(self, line: str) -> Literal["step", "check"] | None:
        """Take a line without its end; return whether a step began or a check ended."""
        if self.step == "checks" and is_listed(line):  # what an image lists of itself
            self.results.feed(line)
            return None
        self.no_space = self.no_space or _NO_SPACE in line.lower()
        self._feed_conflict(line)
        step = _STEP.match(line)
        name = step["name"] if step else ""
        if line.startswith("INFO:") and _PACKING in line:
            name = "pack"
        if name and self.steps[:1] == [name]:
            self.enter(self.steps.pop(0))
            return "step"
        if line.startswith("+ pip install ") and _INDEX in line:
            self.index = line.partition(_INDEX)[2].split(" ")[0]
        if line.startswith("+ ") and self.step not in ("base", "checks", "pack"):
            self.command = line[2:]
        if line.strip() and not any(noise in line for noise in _NOISE):
            self.tail.append(line)
        if self.step == "checks" and self.results.feed(line):
            return "check"
        return None

    def _feed_conflict(self, line: str) -> None:
        """Take a line about packages that cannot be installed together."""
        reason = _REASON.fullmatch(line)
        if reason and reason["text"] not in self.reasons:
            self.reasons.append(reason["text"])
        elif line.startswith(CONFLICT):
            self.conflict = line.removeprefix(CONFLICT)
        elif line.startswith(FITS):
            self.fits = tuple(line.removeprefix(FITS).split())
