"""The failed tasks that srun reports in the log of the batch shell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolkit.model.run import Failure
from toolkit.units import signal_of

_SRUN_EXIT = re.compile(r"srun: error: (?P<host>[^:\s]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)")
_CODE = re.compile(r"Exited with exit code (\d{1,9})")
# srun names a signal as strsignal(3) does; these are the ones that end ranks.
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


def rank_failure(
    exit_code: int, rank: int | None, host: str | None, *, task: str = "rank"
) -> Failure:
    """Return a failure with its message: ``rank 2 on nid002: exit code 3``.

    Args:
        exit_code: of the process; 128 + n if signal n ended it.
        rank: number of the rank or task; None if it is not known.
        host: of the process; None if it is not known.
        task: what messages call it: ``rank``, ``task`` or ``agent``.
    """
    where = f" on {host}" if host else ""
    signal = signal_of(exit_code)
    how = f"killed by signal {signal}" if signal else f"exit code {exit_code}"
    return Failure(
        exit_code=exit_code,
        rank=rank,
        host=host,
        text=f"{task} {'?' if rank is None else rank}{where}: {how}",
    )


def failures_of_step(lines: Iterable[str], *, task: str = "rank") -> list[Failure]:
    """Return the failed tasks that srun reports.

    Tasks that failed by themselves come first, then those that Slurm stopped.

    Args:
        lines: of the batch shell's log.
        task: what messages call a task of Slurm: a rank, or an agent that starts ranks.
    """
    own: list[Failure] = []
    stopped: list[Failure] = []
    for line in lines:
        match = _SRUN_EXIT.search(line)
        if match:
            code, by_slurm = _exit_code(match["how"])
            numbers = _tasks(match["tasks"])
            (stopped if by_slurm else own).extend(
                rank_failure(code, number, match["host"], task=task) for number in numbers
            )
    return own + stopped


def _tasks(text: str) -> list[int]:
    """Return the numbers of a list such as ``0,2-3``, at most 1,000 of them."""
    numbers: list[int] = []
    for part in text.split(",", 1000)[:1000]:
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and len(part) < 20:
            numbers += range(int(first), min(int(last or first), int(first) + 1000) + 1)
    return numbers[:1000]


def _exit_code(text: str) -> tuple[int, bool]:
    """Return the exit code in srun's message, and whether Slurm stopped the task."""
    code = _CODE.search(text)
    if code:
        return int(code[1]), int(code[1]) == 143
    number = next((number for name, number in _SIGNALS.items() if text.startswith(name)), 1)
    return (128 + number if number > 1 else 1), number == 15


def batch_lines(logs: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the lines of the batch shell's own log, to which srun writes."""
    return [line for host, lines in logs if not host for line in lines]
