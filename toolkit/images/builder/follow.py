"""Run a build's programs so that none outlives the tool, and follow their output.

The output becomes a log, progress, the seconds of each step, and an error if a step fails.

When the tool is gone, for whatever reason, the kernel kills each program that it started; what
runs in namespaces (``kernel``) ends with the namespaces. The next build removes the directories.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from toolkit import shell
from toolkit.errors import BuildError, NoSpaceError, ToolkitError
from toolkit.images.host.host_config import mask_secrets
from toolkit.images.host.kernel import die_with_parent
from toolkit.images.recipe.plan import STEP
from toolkit.images.recipe.protection import CONFLICT
from toolkit.images.store.contents import is_listed
from toolkit.images.verify.own_checks import Results
from toolkit.shell import Progress
from toolkit.units import human_time

# What the last steps of every build do, for people.
LAST_STEPS = {"checks": "run the image's checks", "pack": "into one file"}
_LONGEST = 1 << 18  # characters of a line; a longer one has its end only
_TAIL = 15  # lines of the log that a failure shows
_STEP = re.compile(re.escape(STEP) + r"([^ :]+): ")
_PACKING = "INFO:    Creating SIF file"
_NO_SPACE = "no space left on device"
_CLEANUP = 60.0  # seconds for a killed program to end


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | str = "/",
    locks: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Start a program that the kernel kills when the calling thread ends.

    Args:
        command: The program and its arguments.
        environment: Its whole environment.
        cwd: The program's current directory.
        locks: Those of the build's directories, which no other build removes until the program has
            ended. They are open directories of the host: only for programs that pass them to no
            code of an image.
    """
    tool = os.getpid()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != tool:  # killed before the kernel was asked
            os._exit(1)

    return shell.start(
        command,
        env=environment,
        cwd=cwd,
        stderr=subprocess.STDOUT,
        new_session=True,
        pass_fds=locks,
        preexec_fn=prepare,
    )


def stop(process: subprocess.Popen[str]) -> None:
    """Kill a program with its session, unless it has ended, and wait for its end."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLEANUP)


@dataclass
class Reader:
    """Follow a build.

    Attributes:
        steps: The names of the coming steps that a program says begin, in order. Only the next one
            is believed.
        step: The current step: ``base``, a step of the recipe, ``checks`` or ``pack``.
        command: The last command that the step began.
        no_space: A file system was full.
        constrained: pip named a constraint as the reason why it cannot install something.
        conflict: The packages that a step of pip could not install beside the protected ones.
    """

    steps: list[str] = field(default_factory=list)
    step: str = "base"
    command: str = ""
    no_space: bool = False
    constrained: bool = False
    conflict: str = ""
    results: Results = field(default_factory=Results)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))

    def enter(self, step: str) -> None:
        """Begin a step."""
        self.step, self.command, self.no_space, self.conflict = step, "", False, ""
        self.constrained = False
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
        self.constrained = self.constrained or "(constraint)" in line
        if self.constrained and line.startswith(CONFLICT):
            self.conflict = line.removeprefix(CONFLICT)
        if line.strip():
            self.tail.append(line)
        return "check" if self.step == "checks" and self.results.feed(line) else None


class Follower:
    """The progress of one build; several programs may work on it one after the other.

    Args:
        name: The image's name.
        log: The file that receives all output.
        progress: Shows the steps.
        expected: The seconds that each step is likely to take, by name.

    Attributes:
        details: What each step does, for people, by name.
        secrets: Texts that the log must not hold.
        reader: Knows the current step and the results of the checks.
        seconds: The seconds that each step took, by name.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        progress: Progress,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self.details: Mapping[str, str] = LAST_STEPS
        self.secrets: tuple[str, ...] = ()
        self.reader = Reader()
        self.seconds: dict[str, float] = {}
        self.name, self.log = name, log
        self._progress, self._expected = progress, expected or {}
        self._began = time.monotonic()
        log.unlink(missing_ok=True)  # who else can write there may have put a link in its place
        # Line by line, for users who watch it.
        self._stream = log.open("x", buffering=1, encoding="utf-8")

    def follow(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        locks: Sequence[int] = (),
        steps: Collection[str] = (),
        on_line: Callable[[str], object] | None = None,
        cwd: Path | str = "/",
    ) -> int:
        """Run a program to its end; return its exit code.

        Args:
            command: The program and its arguments.
            environment: Its whole environment.
            locks: As of ``start``.
            steps: The steps that the program will announce, in their order.
            on_line: Called with every line of the output in place of ``take_line``.
            cwd: The program's current directory.
        """
        self.reader.steps, take = list(steps), on_line or self.take_line
        process = start(command, environment, cwd, locks)
        try:
            for line in _lines(process.stdout):
                line = f"{line.rstrip(chr(10))}\n"
                # A list of contents is in no log, and a password may be the name of a package.
                if self.reader.step != "checks" or not is_listed(line):
                    # Cut after it is masked: half a secret would not be found.
                    line = mask_secrets(self.secrets, line)[-_LONGEST:]
                    self._stream.write(line)
                take(line)
            code = process.wait()
            return code if code >= 0 else 128 - code
        finally:
            stop(process)

    def take_line(self, line: str) -> None:
        """Take a line of output for the current step."""
        event = self.reader.feed(line.rstrip("\n"))
        if event == "step":
            self.begin(self.reader.step)
        if event == "check":
            check = self.reader.results.checks[-1]
            self._progress.say("check", f"{check.name} {check.outcome}: {check.message}")

    def say(self, subject: str, text: str) -> None:
        """Show a fact about the current step."""
        self._progress.say(subject, text)

    def announce(self, step: str) -> None:
        """Begin a step, and say so in the log."""
        self.begin(step)
        line = f"{STEP}{step}: {self.details.get(step, '')}\n"
        self._stream.write(mask_secrets(self.secrets, line))

    def begin(self, step: str) -> None:
        """End the current step and begin the next."""
        self._stop_clock()
        self.seconds[step] = 0.0
        self.reader.enter(step)
        self._progress.begin(step, self.details.get(step, ""), self._expected.get(step))

    def reuse(self, step: str) -> None:
        """Show a step that comes from a cache."""
        self.begin(step)
        self._progress.end("kept")

    def end(self) -> None:
        """End the build."""
        self._stop_clock()
        self._stream.close()
        self._progress.end()

    def _stop_clock(self) -> None:
        """Stop the clock of the current step, and start that of the next."""
        now = time.monotonic()
        if self.seconds:
            last = next(reversed(self.seconds))
            self.seconds[last] = round(now - self._began, 1)
        self._began = now

    def error(self, code: int) -> ToolkitError:
        """Return the error to raise after the current step failed with an exit code."""
        self._progress.end("failed")
        self._stream.close()
        reader, name = self.reader, self.name
        if reader.no_space:
            return NoSpaceError(
                f"a disk was full in the step {reader.step} of {name}",
                details=tuple(reader.tail),
                next_step=f"the log: {self.log}",
            )
        if reader.step == "checks" and (failed := reader.results.failed):
            count = f"{len(failed)} of {len(reader.results.checks)}"
            return BuildError(
                f"{name} was built but did not pass {count} checks; it is not kept",
                place=", ".join(check.name for check in failed),
                details=[f"{check.name}: {check.message}" for check in failed],
                next_step=f"the log: {self.log}",
            )
        if reader.conflict:
            return BuildError(
                f"{reader.conflict} would replace what {name} is verified for",
                place=f"step {reader.step}",
                details=tuple(reader.tail),
                next_step="take what fits (toolkit-fits); or, on purpose, write the new version of"
                " what is held into [overrides] of the recipe, or of the base: `replaces` of the"
                f" step; the log: {self.log}",
            )
        place = f"step {reader.step}" + (f", command: {reader.command}" if reader.command else "")
        after = human_time(time.monotonic() - self._began)
        return BuildError(
            f"{name} could not be built: the step {reader.step} failed after {after}"
            f" (exit code {code})",
            place=place,
            details=tuple(reader.tail),
            next_step=f"the log: {self.log}",
        )


def _lines(stream: IO[str] | None) -> Iterator[str]:
    while stream and (line := stream.readline(_LONGEST)):
        while not line.endswith("\n") and (more := stream.readline(_LONGEST)):
            line = (line + more)[-2 * _LONGEST :]
        yield line
