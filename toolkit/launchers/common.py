"""What launchers share: how a script becomes a command, what an image must hold, and how srun reports a task that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolkit.errors import LauncherMismatchError
from toolkit.launchers import Request
from toolkit.model.run import Failure

_SRUN_EXIT = re.compile(r"srun: error: (?P<host>[^:\s]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)")
_CODE = re.compile(r"Exited with exit code (\d+)")
# srun names a signal in the words of strsignal(3); these are the ones that end ranks.
_SIGNALS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Terminated": 15,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Out Of Memory": 9,
}


def python_command(request: Request) -> tuple[str, ...]:
    """``train.py`` is run by the image's Python; anything else is a program of its own, which nobody looks for on PATH."""
    script = request.script
    if request.job.python_module:
        return ("python3", "-m", request.job.python_module)
    return (
        ("python3", script)
        if script.endswith(".py")
        else (script if "/" in script else f"./{script}",)
    )


def interface(request: Request) -> dict[str, str]:
    """Variables that bind Gloo and NCCL to the site's network between nodes, where it is written down."""
    name = request.site.interface
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


def needs(framework: str, launcher: str, request: Request) -> list[LauncherMismatchError]:
    """Return a finding if the image lacks a framework; of a foreign image nothing is known."""
    if request.manifest is None or framework in request.manifest.frameworks:
        return []
    held = ", ".join(sorted(request.manifest.frameworks)) or "none"
    return [
        LauncherMismatchError(
            f"the launcher {launcher} needs {framework}, which this {request.noun} does not hold (it holds: {held})",
            place="--launcher",
            next_step=f"choose another {request.noun} or launcher",
        )
    ]


def failed(exit_code: int, rank: int | None, host: str | None, *, task: str = "rank") -> Failure:
    """A failure in words: ``rank 2 on nid002: exit code 3``. Codes above 128 are signals; a host may not be known."""
    where = f" on {host}" if host else ""
    how = f"killed by signal {exit_code - 128}" if exit_code > 128 else f"exit code {exit_code}"
    return Failure(
        exit_code=exit_code,
        rank=rank,
        host=host,
        text=f"{task} {'?' if rank is None else rank}{where}: {how}",
    )


def failures_of_step(lines: Iterable[str], *, task: str = "rank") -> list[Failure]:
    """Return the tasks that srun says failed: those that ended by themselves first, then those that Slurm stopped.

    Args:
        lines: of the batch shell's log.
        task: what a task of Slurm is to people: a rank, or an agent that starts ranks.
    """
    own: list[Failure] = []
    stopped: list[Failure] = []
    for line in lines:
        match = _SRUN_EXIT.search(line)
        if match:
            code, by_slurm = _how(match["how"])
            numbers = _tasks(match["tasks"])
            (stopped if by_slurm else own).extend(
                failed(code, number, match["host"], task=task) for number in numbers
            )
    return own + stopped


def _tasks(text: str) -> list[int]:
    """Return the numbers of a list such as ``0,2-3``, at most 1,000 of them."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found += range(int(first), min(int(last or first), int(first) + 1000) + 1)
    return found[:1000]


def _how(text: str) -> tuple[int, bool]:
    code = _CODE.search(text)
    if code:
        return int(code[1]), int(code[1]) in (143,)
    number = next((number for name, number in _SIGNALS.items() if text.startswith(name)), 1)
    return (128 + number if number > 1 else 1), number == 15


def batch_lines(logs: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The lines of the batch shell's own log, where srun speaks."""
    return [line for host, lines in logs if not host for line in lines]
