"""Runs what builds under the guard, and follows what it says: a log, progress, and in the end how long each step took, or an error."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError, NoSpaceError, ToolkitError
from toolkit.images.build.buildlog import Reader, pin_fitting
from toolkit.images.build.host_mounts import mask_secrets
from toolkit.images.build.workspace import Workspace
from toolkit.model.image import Check
from toolkit.progress import Progress
from toolkit.units import human_time

_PATIENCE = 60.0  # seconds for the guard to clear up after an interruption


class Follower:
    """What is built, as far as it has come; several programs may work on it one after the other.

    Attributes:
        reader: knows the step, and what the checks said.
        seconds: that each step took, by name.
    """

    def __init__(
        self,
        name: str,
        details: Mapping[str, str],
        log: Path,
        progress: Progress,
        *,
        expected: Mapping[str, float] | None = None,
        secret: tuple[str, ...] = (),
    ) -> None:
        self.reader = Reader([])
        self.seconds: dict[str, float] = {}
        self.log = log
        self._name, self._details, self._progress, self._expected, self._secret = (
            name,
            details,
            progress,
            expected or {},
            secret,
        )
        self._began = time.monotonic()
        self._stream = log.open(
            "w", buffering=1, encoding="utf-8"
        )  # line by line, for who watches it

    def follow(
        self,
        command: list[str],
        environment: Mapping[str, str],
        place: Workspace,
        *,
        steps: Collection[str] = (),
        hidden: Collection[str] = (),
        on_step: Callable[[str, int], object] | None = None,
        on_line: Callable[[str], object] | None = None,
        cwd: Path | str = "/",
        mark: str = "",
    ) -> int:
        """Run a program under the guard to its end; its exit code.

        Args:
            place: whose directories go, and whose locks are held until all of it has ended.
            steps: that the program will say to begin, in their order.
            hidden: steps that are not told, but count as part of the one before.
            on_step: is told when a step begins: its name, and the process id of the guard.
            on_line: gets every line of the output.
            cwd: where it runs.
            mark: a word in the environment of what others start for the program, which ends when it is stopped; empty: nobody does.
        """
        self.reader.steps = list(steps)
        directories = [str(directory) for directory in place.directories]
        process = shell.start(
            [
                sys.executable,
                "-m",
                "toolkit.images.build.guard",
                *(("--mark", mark) if mark else ()),
                *directories,
                "--",
                *command,
            ],
            env=environment,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            new_session=True,
            pass_fds=place.locks,
        )
        try:
            for line in process.stdout or ():
                line = mask_secrets(self._secret, line)
                self._stream.write(line)
                if on_line:
                    on_line(line)
                if self._take(line, hidden) and on_step:
                    on_step(self.reader.step, process.pid)
            return process.wait()
        finally:
            # Whatever happened here: with the end of this pipe, the guard ends everything.
            if process.stdin:
                process.stdin.close()
            self._await_guard(process)

    def _await_guard(self, process: subprocess.Popen[str]) -> None:
        """Wait for the guard to clean up, but not for ever: it goes on by itself, and holds the locks until it has."""
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._progress.say(
                "cleanup",
                f"processes of the build are still ending; process {process.pid} removes what they leave",
            )

    def _take(self, line: str, hidden: Collection[str]) -> bool:
        before = self.reader.step
        event = self.reader.feed(line.rstrip("\n"))
        if event == "step" and self.reader.step in hidden:
            self.reader.step = before
        elif event == "step":
            self.begin(self.reader.step)
            return True
        elif event == "check":
            check = self.reader.results.checks[-1]
            self._progress.say(
                "check", f"{check.name} {'passed' if check.passed else 'failed'}: {check.detail}"
            )
        return False

    def say(self, line: str) -> None:
        """A line for the log that no program said."""
        self._stream.write(mask_secrets(self._secret, line) + "\n")

    def begin(self, step: str) -> None:
        """A step begins now; the one before has ended."""
        self._clock(step)
        self.reader.enter(step)
        self._progress.begin(step, self._details.get(step, ""), self._expected.get(step))

    def kept(self, step: str) -> None:
        """A step has nothing to do."""
        self.begin(step)
        self._progress.end("kept")

    def end(self) -> None:
        """All steps are over."""
        self._clock("end")
        del self.seconds["end"]
        self._stream.close()
        self._progress.end()

    def give_up(self) -> None:
        """It is left to another way to build."""
        self._stream.close()
        self._progress.end("left")

    def _clock(self, step: str) -> None:
        """The step before has ended now, and ``step`` begins."""
        now = time.monotonic()
        if self.seconds:
            last = next(reversed(self.seconds))
            self.seconds[last] = round(now - self._began, 1)
        self._began = now
        self.seconds[step] = 0.0

    def error(self, code: int) -> ToolkitError:
        """What to raise: the current step failed, with an exit code."""
        self._progress.end("failed")
        self._stream.close()
        reader, name = self.reader, self._name
        if reader.no_space:
            return NoSpaceError(
                f"a disk was full in the step {reader.step} of {name}",
                details=tuple(reader.tail),
                next_step=f"the log: {self.log}",
            )
        if reader.step == "checks" and reader.results.failed:
            failed = reader.results.failed
            details = [f"{check.name}: {check.detail}" for check in failed]
            cause = f"{name} was built but did not pass {len(failed)} of {len(reader.results.checks)} checks; it is not kept"
            step = f"{advise_on_checks(failed, reader.index)}the log: {self.log}"
            return BuildError(
                cause,
                place=", ".join(check.name for check in failed),
                details=details,
                next_step=step,
            )
        if reader.conflict and reader.reasons:
            return self._conflict()
        place = f"step {reader.step}" + (f", command: {reader.command}" if reader.command else "")
        after = human_time(time.monotonic() - self._began)
        cause = f"{name} could not be built: the step {reader.step} failed after {after} (exit code {code})"
        return BuildError(
            cause, place=place, details=tuple(reader.tail), next_step=f"the log: {self.log}"
        )

    def _conflict(self) -> ToolkitError:
        """Return the error about packages that do not fit what the image was verified for."""
        reader = self.reader
        held = [reason.rpartition(" ")[2] for reason in reader.reasons if "(constraint)" in reason]
        cause = f"{reader.conflict} would replace what {self._name} is verified for: {', '.join(held) or 'see below'}"
        fitting = pin_fitting(reader.conflict, reader.fits)
        steps = [f"packages = {json.dumps(list(fitting))} fits"] if fitting else []
        names = [one.partition("==")[0] for one in held]
        if names:
            wanted = ", ".join(f"{name}==VERSION" for name in names)
            steps.append(
                f"to replace it on purpose, add {wanted} to packages and replaces = {json.dumps(names)} to the step: "
                "what was built on it is built again"
            )
        return BuildError(
            cause,
            place=f"step {reader.step}",
            details=tuple(reader.reasons),
            next_step="; ".join(steps) or f"the log: {self.log}",
        )


def advise_on_checks(failed: Sequence[Check], index: str = "") -> str:
    """Return what to do about checks that failed because of how a package was built; empty where nothing is known.

    Args:
        failed: the checks.
        index: where the framework is from, if the build asked it.
    """
    texts = " ".join(check.detail for check in failed)
    if "does not exist" in texts and "operator " in texts:
        asked = (
            f"the build that fits is at {index}, which did not give it to this machine"
            if index
            else "the build that fits is where torch is from"
        )
        return (
            f"the package is a build for another torch, such as one with CUDA; {asked}: name an index that has it in `index` of the step, "
            "or replace torch, too (replaces); "
        )
    if any(check.name == "horovod-build" and "was built for" in check.detail for check in failed):
        return "a step has replaced the framework: pin its version, or replace it by a step of pip with `replaces`; "
    if any(check.name == "imports" for check in failed):
        return "`imports` of a step of pip says which modules are imported, imports = [] that none is; "
    return ""
