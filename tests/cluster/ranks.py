"""The processes of a run's ranks, seen from outside: the nodes of the local cluster are namespaces of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def ran(*argv: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it printed is text, as is `stdin`: nothing if it is not given."""
    settings = {"capture_output": True, "timeout": 300, "input": more.pop("stdin", ""), **more}
    return subprocess.run([str(word) for word in argv], text=True, check=False, **settings)


def processes_of(directory: Path) -> dict[int, dict[str, str]]:
    """Process id -> environment of whatever was started from a directory: ranks, agents, containers and batch shells."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            rows = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile, or is not ours to look at
        environment = dict(
            row.decode(errors="replace").partition("=")[::2] for row in rows if b"=" in row
        )
        belongs = "SLURM_JOB_ID" in environment and str(directory) in (
            environment.get("PWD", "") + environment.get("SLURM_SUBMIT_DIR", "")
        )
        if command and belongs and int(entry.name) != os.getpid():
            found[int(entry.name)] = environment
    return found


def rank_process(directory: Path, rank: int) -> int:
    """The process of one rank, which torchrun told its number.

    Raises:
        LookupError: there is none.
    """
    for pid, environment in processes_of(directory).items():
        with suppress(OSError):  # it has ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if environment.get("RANK") == str(rank) and b"train.py" in command:
                return pid
    raise LookupError(f"no process of rank {rank} below {directory}")


def none_left(directory: Path) -> None:
    """After a job has ended, Slurm may need a moment (KillWait) until all of its processes are gone."""
    wait_for(
        lambda: not processes_of(directory),
        "no process to be left",
        says=lambda: repr(processes_of(directory)),
    )


def logs_of(directory: Path, run: str) -> str:
    """Return what all ranks and the batch script of a run below a directory have printed so far.

    Read from the files: to start `toolkit logs` five times a second would take the processor from
    the ranks that a test waits for.
    """
    files = sorted((directory / "runs" / run / "logs").rglob("*.log"))
    return "".join(file.read_text(errors="replace") for file in files)


def outcome(directory: Path, run: str) -> dict[str, Any]:
    """Return what is recorded of the end of a run below a directory."""
    found: dict[str, Any] = json.loads((directory / "runs" / run / "outcome.json").read_text())
    return found


def row(toolkit: Any, directory: Path, run: str) -> dict[str, Any]:
    """Return what `toolkit ps` says of a run below a directory."""
    rows = json.loads(toolkit("ps", "--all", "--json", cwd=directory).stdout)
    return next(found for found in rows if found["run"] == run)


def wait_for(
    condition: Callable[[], object],
    what: str,
    *,
    seconds: float = 240,
    says: Callable[[], str] = str,
) -> None:
    """Until a condition holds; ``says`` tells how things are where it never does."""
    until = asked = time.monotonic()
    until += seconds
    while not condition():
        answered = time.monotonic()
        assert answered < until, f"waited {seconds:g} s for {what}\n{says()}"
        # What starts a program to ask leaves the processor to those it waits for.
        time.sleep(max(0.05, 4 * (answered - asked)))
        asked = time.monotonic()
