"""The crew of a rehearsal: its participants' commands, run as each of them, and their outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit import shell
from toolkit.text import one_line
from toolkit.workshops.rehearsal.accounts import Person
from toolkit.workshops.rehearsal.report import JOIN, Attempt

MINE = "mine"  # the directory of a participant


class Crew:
    """The participants, their commands, and what they have done.

    Attributes:
        attempts: what they have done.
        stopped: their commands were ended early.
        began: when the first command began.
    """

    def __init__(
        self,
        exercises: tuple[str, ...],
        argv: Callable[..., tuple[str, ...]],
        limit: float,
    ) -> None:
        self.exercises, self._argv, self._limit = exercises, argv, limit
        self.attempts: list[Attempt] = []
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self.stopped = threading.Lock(), False
        self.began = time.monotonic()

    def participate(self, person: Person, source: Path) -> None:
        """Join as one participant, and run every exercise."""
        join = ("workshop", "join", str(source), MINE, "--json", "--share-results")
        if not self._attempt(person, person.home, JOIN, join):
            return
        for name in self.exercises:
            self._attempt(person, person.home / MINE, name, ("run", "--json", name))

    def _attempt(self, person: Person, cwd: Path, exercise: str, words: tuple[str, ...]) -> bool:
        began = time.monotonic() - self.began
        code, answer, tail = self._call(person, cwd, words)
        if self.stopped:
            return False
        after = time.monotonic() - self.began
        if code == -signal.SIGKILL:
            tail = f"it was ended after {self._limit:.0f} s"
            self._cancel(person, cwd, exercise)
        cause, fix = ("", "") if code == 0 else self._cause(person, cwd, answer, tail)
        accuracy = (answer.get("results") or {}).get("accuracy")
        attempt = Attempt(
            person=person.name,
            exercise=exercise,
            ok=code == 0,
            began=round(began, 1),
            after=round(after, 1),
            accuracy=float(accuracy) if isinstance(accuracy, int | float) else None,
            cause=cause,
            fix=fix,
        )
        with self._lock:
            self.attempts.append(attempt)
        return attempt.ok

    def _cancel(self, person: Person, cwd: Path, exercise: str) -> None:
        """Cancel the job of a command that was ended: others wait for its nodes."""
        newest = max((cwd / "runs").glob(f"{exercise}-*"), default=None)
        if newest is not None:
            self._call(person, cwd, ("cancel", newest.name))

    def _cause(
        self, person: Person, cwd: Path, answer: dict[str, Any], tail: str
    ) -> tuple[str, str]:
        """Return why a command failed and what to do, by explain if there is a run."""
        if "run" in answer:
            _, explained, _ = self._call(person, cwd, ("explain", "--json", str(answer["run"])))
            match = explained.get("match") or {}
            fix = (match.get("fix") or [""])[0]
            cause = match.get("cause") or explained.get("first") or answer.get("message") or tail
            return one_line(str(cause)), one_line(str(fix))
        findings = [
            finding
            for finding in answer.get("findings") or ()
            if finding.get("outcome", "FAIL") == "FAIL"
        ]
        causes = [str(each.get("cause") or each.get("detail") or "") for each in findings]
        steps = [str(each.get("next_step") or "") for each in findings]
        return one_line("; ".join(causes) or tail), one_line("; ".join(filter(None, steps)))

    def _call(
        self, person: Person, cwd: Path, words: tuple[str, ...]
    ) -> tuple[int, dict[str, Any], str]:
        """Run `toolkit` as a participant; return its exit code, its JSON and its last line."""
        with self._lock:
            if self.stopped:
                return 130, {}, "stopped"
            process = shell.start(self._argv(person, cwd, words), cwd="/", new_session=True)
            self._running.add(process)
        timer = threading.Timer(self._limit, _kill, (process,))
        timer.daemon = True
        timer.start()
        try:
            stdout, stderr = process.communicate()
        finally:
            timer.cancel()
            with self._lock:
                self._running.discard(process)
        return process.returncode, _json(stdout), _last(stderr)

    def stop(self) -> None:
        """End all commands of the participants."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last(stderr: str) -> str:
    """Return the line with the error, else the last one."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1]


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
