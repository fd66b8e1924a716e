"""What a build prints, line by line, as steps, results and the place of a failure. Pure: reads what it is given."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from toolkit.images.recipe.definitions import STEP
from toolkit.images.recipe.protection import CONFLICT, FITS, names_of, normal
from toolkit.model.image import Check

TAIL = 15  # lines of the log that a failure shows

_STEP = re.compile(re.escape(STEP) + r"(?P<name>[^ :]+): (?P<detail>.*)")
_CHECK = re.compile(r"toolkit-check: (?P<name>\S+) (?P<outcome>passed|failed): (?P<detail>.*)")
_FACT = re.compile(r"toolkit-fact: (?P<kind>framework|mpi) (?P<value>.+)")
_RANK = re.compile(
    r"\[\d+(?:,\d+)?\]<std(?:out|err)>: ?"
)  # which horovodrun puts before the lines of its ranks
_TESTS, _PACKING = "Running testscript", "Creating SIF file"
_NOISE = ("Non-gzip squashfs compression", "To see mksquashfs output")
_REASON = re.compile(
    r" {4}(?P<text>\S.{0,300}(?: depends on |\(constraint\) ).{1,300})"
)  # as pip explains a conflict
_INDEX = " --extra-index-url "
_NO_SPACE = "No space left on device"


@dataclass
class Results:
    """What the checks of an image said."""

    checks: list[Check] = field(default_factory=list)
    frameworks: dict[str, str] = field(default_factory=dict)
    mpi: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Check | None:
        """Take a line; the check that it ends, if it is the line of one."""
        found = _CHECK.match(line)
        if found:
            check = Check(
                name=found["name"],
                passed=found["outcome"] == "passed",
                detail=_RANK.sub("", found["detail"]),
            )
            self.checks.append(check)
            return check
        fact = _FACT.match(line)
        if fact and fact["kind"] == "mpi":
            self.mpi.append(fact["value"])
        elif fact:
            name, _, version = fact["value"].partition(" ")
            self.frameworks[name] = version
        return None

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]


def pin_fitting(wanted: str, fits: tuple[str, ...]) -> tuple[str, ...]:
    """Return requirements for what was wanted in the versions that fit.

    Args:
        wanted: requirements, separated by commas: ``torchvision==0.29.2``.
        fits: names and versions as pip writes them: ``torchvision-0.28.0``.
    """
    names = names_of(wanted.split(", "))
    versions = {normal(one.rpartition("-")[0]): one.rpartition("-")[2] for one in fits}
    return tuple(f"{name}=={versions[name]}" for name in names if name in versions)


@dataclass
class Reader:
    """Follows a build.

    Attributes:
        steps: the names of the steps of %post that are still to come, in order: only the next one is believed.
        step: where the build is now: ``base``, a step of %post, ``checks`` or ``pack``.
        command: the last one that %post began.
        no_space: a file system was full.
        conflict: what a step of pip could not install beside what the image was verified for; empty: none failed so.
        reasons: why, as pip says it.
        index: a further package index that a step of pip asked.
        fits: what pip would install instead, each with its version: ``torchvision-0.28.0``.
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
        """A step begins that the build itself does not say."""
        if step != self.step:
            self.step, self.command = step, ""
            self.tail.clear()

    def feed(self, line: str) -> Literal["step", "check"] | None:
        """Take a line without its end; says whether a new step began or a check ended."""
        self.no_space = self.no_space or _NO_SPACE in line
        self._feed_conflict(line)
        found = _STEP.match(line)
        if found and self.steps and found["name"] == self.steps[0]:
            self.enter(self.steps.pop(0))
            return "step"
        if line.startswith("INFO:") and (_TESTS in line or _PACKING in line):
            self.enter("checks" if _TESTS in line else "pack")
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
