"""What BuildKit prints (``--progress=plain``), line by line, as steps and the place of a failure. Pure: reads what it is given."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from toolkit.images.build.buildlog import TAIL
from toolkit.images.recipe.definitions import STEP

_LINE = re.compile(r"#(?P<number>\d+) (?P<rest>.*)")
_OUTPUT = re.compile(r"\d+\.\d+ ?(?P<text>.*)")
_RUN = re.compile(r"\[[^\]]+\] RUN ")
_SAID = re.compile(re.escape(STEP) + r"(?P<name>[^ :]+): (?P<detail>.*)")
WRITTEN = re.compile(re.escape(STEP) + r"(?P<name>[^ :]+): (?P<detail>[^'\";]*)")
# Of "executor failed running [/bin/sh -c ...]: exit code: 1", and as engines say it since 23, only
# the end is news.
_REASON = re.compile(
    r"^ERROR: (?:(?:executor failed running \[.*\]|process \".*\" did not complete successfully): )?"
)
_CODE = re.compile(r"exit code: (\d+)")
NO_SPACE = "no space left on device"
_ENGINE_GONE = (
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


@dataclass
class Vertex:
    """One thing that BuildKit does: a step, if its command says so."""

    name: str = ""
    detail: str = ""
    command: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))


@dataclass
class Reader:
    """Follows a build.

    Attributes:
        step: the one that began last, or has failed.
        detail: what it does.
        command: the last one that it began.
        tail: the last lines that it printed.
        no_space: a file system was full.
        code: with which the shell of the step that failed ended.
        gone: the engine ended in the middle.
        line: the last line, as the step printed it.
    """

    step: str = ""
    detail: str = ""
    command: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    no_space: bool = False
    code: int | None = None
    gone: bool = False
    line: str = ""
    _vertices: dict[str, Vertex] = field(default_factory=dict)
    _failed: bool = False

    def feed(self, line: str) -> Literal["step", "kept"] | None:
        """Take a line without its end; says whether a step began, or was found in the engine's cache."""
        found = _LINE.fullmatch(line)
        lowered = line.lower()
        self.no_space = self.no_space or NO_SPACE in lowered
        if not found:
            self.line = line
            self.gone = self.gone or any(mark in lowered for mark in _ENGINE_GONE)
            if line.strip() and not self.step:
                self.tail.append(line)
            return None
        vertex = self._vertices.setdefault(found["number"], Vertex())
        rest = found["rest"]
        output = _OUTPUT.fullmatch(rest)
        if output:
            return self._printed(vertex, output["text"])
        self.line = line
        return self._changed(vertex, rest)

    def _printed(self, vertex: Vertex, text: str) -> Literal["step"] | None:
        self.line = text
        said = _SAID.fullmatch(text)
        if text.startswith("+ "):
            vertex.command = text[2:]
        elif text.strip():
            vertex.tail.append(text)
        if said and said["name"] == vertex.name:
            vertex.detail, vertex.command = said["detail"], ""
            vertex.tail.clear()
            self._show(vertex)
            return "step"
        if self.step == vertex.name and not self._failed:
            self._show(vertex)
        return None

    def _changed(self, vertex: Vertex, rest: str) -> Literal["kept"] | None:
        """A line about the vertex: its command, that it was kept, or that it failed."""
        written = WRITTEN.search(rest)
        if _RUN.match(rest) and written:
            vertex.name, vertex.detail = written["name"], written["detail"].strip()
        elif rest == "CACHED" and vertex.name:
            self._show(vertex)
            return "kept"
        elif rest.startswith("ERROR") and not self._failed:
            self._failed = bool(vertex.name)
            reason = _REASON.sub("", rest)
            code = _CODE.fullmatch(reason)
            if code:
                self.code = int(code[1])
            else:
                vertex.tail.append(reason)
            self._show(vertex)
        return None

    def _show(self, vertex: Vertex) -> None:
        self.step, self.detail = vertex.name or self.step, vertex.detail
        self.command, self.tail = vertex.command, vertex.tail
