"""Measure what a rehearsal takes: CPUs, memory and disk."""

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
        cpu: seconds that the CPUs of this machine were busy.
    """

    def __init__(self) -> None:
        self._available, self._busy = _available(), _busy()
        self.memory, self.cpu = 0, 0.0

    def take(self) -> None:
        """Take a measurement."""
        self.memory = max(self.memory, self._available - _available())
        self.cpu = round(_busy() - self._busy, 1)


@contextlib.contextmanager
def measuring() -> Iterator[Measures]:
    """Measure until the block ends."""
    measures, stop = Measures(), threading.Event()

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


def size_of(directory: Path) -> int:
    """Return the bytes that the files below a directory take on the disk."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
