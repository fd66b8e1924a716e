"""A script of ours on a site's nodes: a job of `toolkit run` like any other, in a directory of its own that is gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.model.site import Site

_PATIENCE = 1800.0  # seconds: the job may have to wait in a queue


class Ended(NamedTuple):
    """How such a job came out.

    Attributes:
        outcome: of the run, as `toolkit run --json` tells it; None: it never ran, and ``refusal`` says why.
        refusal: in one sentence.
        files: what the script left in ``*.json``, by name.
        fix: what `toolkit explain` says to do about a failure; empty where it does not know.
    """

    outcome: dict[str, Any] | None = None
    refusal: str = ""
    files: dict[str, Any] = {}
    fix: str = ""

    @property
    def results(self) -> dict[str, Any] | None:
        """What the first rank told."""
        found: dict[str, Any] | None = (self.outcome or {}).get("results") or None
        return found

    @property
    def complaint(self) -> str:
        """Why there are no results, in one sentence."""
        if self.outcome is None:
            return self.refusal
        return str(
            self.outcome.get("message") or f"the job ended with {self.outcome.get('exit_code')}"
        )


def parent(site: Site | None) -> Path:
    """A directory that all nodes see, as they do every run; the one that the site takes jobs from, where it takes them from one only."""
    if site is not None and site.submit_directory:
        return Path(os.path.expandvars(site.submit_directory))
    return Path.home() / ".cache" / "toolkit"


def run(script: Path, options: Sequence[str], arguments: Sequence[str], *, within: Path) -> Ended:
    """Run a script on nodes, and wait until it has ended.

    Args:
        options: of `toolkit run`: image, site, launcher, shape.
        arguments: of the script.
        within: the directory in which it is run, in one of its own.
    """
    within.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=within) as name:
        directory = Path(name)
        shutil.copy(script, directory)
        words = [
            sys.executable,
            "-m",
            "toolkit",
            "run",
            "--json",
            "--no-snapshot",
            *options,
            script.name,
            *arguments,
        ]
        try:
            done = shell.run(words, cwd=directory, check=False, timeout=_PATIENCE)
        except CommandFailedError as error:
            return Ended(refusal=error.cause)
        files = {
            path.name: found
            for path in sorted(directory.glob("*.json"))
            if (found := _read(path)) is not None
        }
        return _ended(done, files)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _ended(done: shell.Result, files: dict[str, Any]) -> Ended:
    lines = done.stderr.splitlines()
    try:
        outcome = json.loads(done.stdout)
    except ValueError:
        return Ended(
            refusal=_refusal(lines) or f"toolkit run ended with {done.returncode}", files=files
        )
    fix = next((line.removeprefix("fix").strip() for line in lines if line.startswith("fix  ")), "")
    return Ended(outcome=outcome, files=files, fix=fix)


def _refusal(lines: Sequence[str]) -> str:
    """The error that a command ended with, and what was found wrong, on one line."""
    start = next((index for index, line in enumerate(lines) if line.startswith("error: ")), None)
    if start is None:
        return ""
    found = [
        line.strip()
        for line in lines[start + 1 :]
        if line.startswith("  ") and not line.strip().startswith("exit ")
    ]
    return ": ".join([lines[start].removeprefix("error: "), *found[:1]])
