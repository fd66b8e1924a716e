"""Read what an engine's client prints during a build: steps, and the place of a failure. Pure.

Docker's client prints BuildKit's plain progress (``--progress=plain``), podman's prints buildah's
lines. One reader per client turns them into the same attributes and events.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from toolkit.images.builder.buildlog import TAIL
from toolkit.images.recipe.definitions import STEP

_NO_SPACE = "no space left on device"
# A step's name, as the step prints it, and as the Dockerfile has it.
_PRINTED = re.compile(re.escape(STEP) + r"(?P<name>[^ :]+): (?P<detail>.*)")
_WRITTEN = re.compile(re.escape(STEP) + r"(?P<name>[^ :]+): (?P<detail>[^'\";]*)")

_BUILDKIT_LINE = re.compile(r"#(?P<number>\d+) (?P<rest>.*)")
_BUILDKIT_OUTPUT = re.compile(r"\d+\.\d+ ?(?P<text>.*)")
_BUILDKIT_RUN = re.compile(r"\[[^\]]+\] RUN ")
# Before the reason: "executor failed running [/bin/sh -c ...]: exit code: 1", or the words that
# engines use since 23.
_BUILDKIT_ERROR = re.compile(
    r"^ERROR: (?:(?:executor failed running \[.*\]"
    r"|process \".*\" did not complete successfully): )?"
)
_BUILDKIT_CODE = re.compile(r"exit code: (\d+)")
_BUILDKIT_GONE = (
    "error reading from server: eof",
    "cannot connect to the docker daemon",
    "connection reset by peer",
    "closing transport",
    "transport is closing",
    "error while dialing",
    "context canceled",
    "shutting down",
    "unexpected eof",
)

_INSTRUCTIONS = "ADD|ARG|CMD|COPY|ENTRYPOINT|ENV|FROM|LABEL|RUN|SHELL|USER|WORKDIR"
_PODMAN_STEP = re.compile(rf"(?:\[\d+/\d+\] )?STEP \d+/\d+: (?P<text>(?:{_INSTRUCTIONS}) .*)")
_PODMAN_CACHED = re.compile(r"--> Using cache [0-9a-f]{64}")
_PODMAN_SAVED = re.compile(r"--> [0-9a-f]{11}$")
_PODMAN_RESULT = re.compile(r"[0-9a-f]{64}|(?:\[\d+/\d+\] )?COMMIT.*")
_PODMAN_FAILED = re.compile(
    r"Error: (?:error )?building at STEP \"(?P<text>.{0,4000})\": (?P<reason>.*)"
)
_PODMAN_CODE = re.compile(r"exit status (\d+)$")
_PODMAN_GONE = (
    "server probably quit",
    "unable to connect to podman",
    "cannot connect to podman",
    "connection refused",
    "connection reset by peer",
)


@dataclass
class Instruction:
    """One instruction of the Dockerfile; it is a step of the recipe if its command says so."""

    name: str = ""
    detail: str = ""
    command: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def set_name(self, text: str) -> None:
        """Take the step's name from the instruction's text, if it has one."""
        written = _WRITTEN.search(text)
        if written:
            self.name, self.detail = written["name"], written["detail"].strip()


@dataclass
class _BuildLog:
    """Follow a build.

    Attributes:
        shown: The instruction that began last, or that failed.
        step: The last step that began or failed; stays when ``shown`` is no step.
        no_space: A file system was full.
        code: The exit code of the failed step's shell.
        gone: The engine ended during the build.
        line: The last line, as the step printed it.
    """

    shown: Instruction = field(default_factory=Instruction)
    step: str = ""
    no_space: bool = False
    code: int | None = None
    gone: bool = False
    line: str = ""
    _failed: bool = False

    def _show(self, instruction: Instruction) -> None:
        self.step, self.shown = instruction.name or self.step, instruction

    def _take_output(self, instruction: Instruction, text: str) -> Literal["step"] | None:
        """Take a line that an instruction printed."""
        self.line = text
        printed = _PRINTED.fullmatch(text)
        if text.startswith("+ "):
            instruction.command = text[2:]
        elif text.strip():
            instruction.tail.append(text)
        if printed and printed["name"] == instruction.name:
            instruction.detail, instruction.command = printed["detail"], ""
            instruction.tail.clear()
            self._show(instruction)
            return "step"
        if self.step == instruction.name and not self._failed:
            self._show(instruction)
        return None


@dataclass
class BuildKitLog(_BuildLog):
    """Follow a build of Docker's, whose instructions run in parallel and are numbered."""

    _instructions: dict[str, Instruction] = field(default_factory=dict)

    def feed(self, line: str) -> Literal["step", "kept"] | None:
        """Take a line without its end; return whether a step began or came from the cache."""
        match = _BUILDKIT_LINE.fullmatch(line)
        lowered = line.lower()
        self.no_space = self.no_space or _NO_SPACE in lowered
        if not match:
            self.line = line
            self.gone = self.gone or any(mark in lowered for mark in _BUILDKIT_GONE)
            if line.strip() and not self.step:
                self.shown.tail.append(line)
            return None
        instruction = self._instructions.setdefault(match["number"], Instruction())
        output = _BUILDKIT_OUTPUT.fullmatch(match["rest"])
        if output:
            return self._take_output(instruction, output["text"])
        self.line = line
        return self._take_status(instruction, match["rest"])

    def _take_status(self, instruction: Instruction, rest: str) -> Literal["kept"] | None:
        """Take a line about an instruction: its command, that it was cached, or that it failed."""
        if _BUILDKIT_RUN.match(rest) and _WRITTEN.search(rest):
            instruction.set_name(rest)
        elif rest == "CACHED" and instruction.name:
            self._show(instruction)
            return "kept"
        elif rest.startswith("ERROR") and not self._failed:
            self._failed = bool(instruction.name)
            reason = _BUILDKIT_ERROR.sub("", rest)
            code = _BUILDKIT_CODE.fullmatch(reason)
            if code:
                self.code = int(code[1])
            else:
                instruction.tail.append(reason)
            self._show(instruction)
        return None


@dataclass
class PodmanLog(_BuildLog):
    """Follow a build of podman's, for which the client may run several times.

    Instructions run one after the other (``clients`` sees to that), so a line belongs to the
    instruction that was named last. A step's output may lack a line end, so podman's own words are
    searched for within lines.
    """

    _now: Instruction = field(default_factory=Instruction)
    _reported: set[str] = field(default_factory=set)

    def feed(self, line: str) -> Literal["step", "kept"] | None:
        """Take a line without its end; return whether a step began or came from the cache.

        Each step is reported once, whichever run of the client it was in.
        """
        self.no_space = self.no_space or _NO_SPACE in line.lower()
        self.line = line
        step, failed = _PODMAN_STEP.search(line), _PODMAN_FAILED.search(line)
        if failed:
            self._fail(failed["text"], failed["reason"])
        elif step:
            self._now = Instruction()
            if step["text"].startswith("RUN "):
                self._now.set_name(step["text"])
        elif _PODMAN_CACHED.search(line):
            if self._now.name and self._now.name not in self._reported:
                self._reported.add(self._now.name)
                self._show(self._now)
                return "kept"
        elif not _PODMAN_RESULT.fullmatch(line):
            return self._take_line(_PODMAN_SAVED.sub("", line))
        return None

    def _take_line(self, line: str) -> Literal["step"] | None:
        event = self._take_output(self._now, line)
        if event:
            self._reported.add(self._now.name)
        if line.startswith("Error: "):  # of the step, or the last words of the client
            self.gone = self.gone or any(mark in line.lower() for mark in _PODMAN_GONE)
            self._show(self._now)
        return event

    def _fail(self, text: str, reason: str) -> None:
        """Take the client's last words after an instruction failed."""
        written = _WRITTEN.search(text)
        if written and written["name"] != self._now.name:
            self._now = Instruction()
            self._now.set_name(text)
        code = _PODMAN_CODE.search(reason)
        self.code = int(code[1]) if code else None
        self.gone = self.gone and not code
        if not code:
            self._now.tail.append(reason)
        self._show(self._now)
