"""Measure what a rehearsal takes: CPUs, memory, disk, and Slurm's controller."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_EVERY = 1.0  # seconds


class Measures:
    """Measured values so far.

    Attributes:
        memory: the most bytes of memory that were taken since the beginning.
        controller_cpu: seconds of CPU that the controller took; None if it is unknown.
        controller_memory: the most bytes of memory that it took.
        cpu: seconds that the CPUs of this machine were busy.
    """

    def __init__(self, controller: Path | None) -> None:
        self._controller = controller
        self._available, self._cpu, self._busy = _available(), _cpu(controller), _busy()
        self.memory, self.controller_memory = 0, 0
        self.controller_cpu: float | None = None
        self.cpu = 0.0

    def take(self) -> None:
        """Take a sample."""
        self.memory = max(self.memory, self._available - _available())
        self.cpu = round(_busy() - self._busy, 1)
        now = _cpu(self._controller)
        if now is not None and self._cpu is not None:
            self.controller_cpu = round(now - self._cpu, 2)
        if self._controller is not None:
            self.controller_memory = max(self.controller_memory, _peak(self._controller))


@contextlib.contextmanager
def measuring(controller: Path | None) -> Iterator[Measures]:
    """Measure until the block ends.

    Args:
        controller: the directory in /proc of the controller.
    """
    measures, stop = Measures(controller), threading.Event()

    def sample() -> None:
        while not stop.wait(_EVERY):
            measures.take()

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield measures
    finally:
        stop.set()
        thread.join()
        measures.take()


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _busy() -> float:
    """Return the seconds that all CPUs together were busy since the machine started."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _idle, _wait, irq, softirq = map(int, words[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _cpu(process: Path | None) -> float | None:
    """Return the seconds of CPU of a process."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split() if process else []
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks if len(fields) > 12 else None


def _peak(process: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def size_of(directory: Path) -> int:
    """Return the bytes that the files below a directory take on the disk."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
