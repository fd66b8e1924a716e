"""What podman prints when it builds, line by line, as steps and the place of a failure. Pure: reads what it is given.

One thing is done after the other (``podman_client`` sees to that), so a line belongs to the
instruction that was named last. What a step prints may lack an end of line, so podman's own words
are looked for within lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from toolkit.images.build.docker import log as docker_log
from toolkit.images.build.docker.log import NO_SPACE, WRITTEN, Vertex

_WORDS = "ADD|ARG|CMD|COPY|ENTRYPOINT|ENV|FROM|LABEL|RUN|SHELL|USER|WORKDIR"
_STEP = re.compile(rf"(?:\[\d+/\d+\] )?STEP \d+/\d+: (?P<text>(?:{_WORDS}) .*)")
_KEPT = re.compile(r"--> Using cache [0-9a-f]{64}")
_SAVED = re.compile(r"--> [0-9a-f]{11}$")
_RESULT = re.compile(r"[0-9a-f]{64}|(?:\[\d+/\d+\] )?COMMIT.*")
_FAILED = re.compile(r"Error: (?:error )?building at STEP \"(?P<text>.{0,4000})\": (?P<reason>.*)")
_CODE = re.compile(r"exit status (\d+)$")
_GONE = (
    "server probably quit",
    "unable to connect to podman",
    "cannot connect to podman",
    "connection refused",
    "connection reset by peer",
)


@dataclass
class Reader(docker_log.Reader):
    """Follows one build, which may be done in several runs of the client."""

    _now: Vertex = field(default_factory=Vertex)
    _told: set[str] = field(default_factory=set)

    def feed(self, line: str) -> Literal["step", "kept"] | None:
        """Take a line without its end; says whether a step began, or was found in the cache: once, whichever run it was in."""
        self.no_space = self.no_space or NO_SPACE in line.lower()
        self.line = line
        step, failed = _STEP.search(line), _FAILED.search(line)
        if failed:
            self._fail(failed["text"], failed["reason"])
        elif step:
            self._enter(step["text"])
        elif _KEPT.search(line):
            return self._keep()
        elif not _RESULT.fullmatch(line):
            return self._say(_SAVED.sub("", line))
        return None

    def _enter(self, text: str) -> None:
        written = WRITTEN.search(text) if text.startswith("RUN ") else None
        self._now = Vertex(written["name"], written["detail"].strip()) if written else Vertex()

    def _keep(self) -> Literal["kept"] | None:
        if not self._now.name or self._now.name in self._told:
            return None
        self._told.add(self._now.name)
        self._show(self._now)
        return "kept"

    def _say(self, line: str) -> Literal["step"] | None:
        event = self._printed(self._now, line)
        if event:
            self._told.add(self._now.name)
        if line.startswith("Error: "):  # of the step, or the last words of the client
            self.gone = self.gone or any(mark in line.lower() for mark in _GONE)
            self._show(self._now)
        return event

    def _fail(self, text: str, reason: str) -> None:
        """The last words of the client where an instruction failed."""
        written = WRITTEN.search(text)
        if written and written["name"] != self._now.name:
            self._now = Vertex(written["name"], written["detail"].strip())
        code = _CODE.search(reason)
        self.code = int(code[1]) if code else None
        self.gone = self.gone and not code
        if not code:
            self._now.tail.append(reason)
        self._show(self._now)
