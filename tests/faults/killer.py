"""Run the toolkit and kill it with SIGKILL at a chosen step: ``python -m tests.faults.killer LOG AFTER NUMBER -- ARGUMENT...``.

A step is anything that another process can see: a file that is opened for writing, renamed, linked
or removed, an fsync, a program that is started. Steps are counted from the first one whose text
holds the word AFTER; all are written to LOG. With NUMBER 0 nothing is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

_EVENTS = frozenset(
    (
        *(
            *"os.rename os.remove os.link os.symlink os.mkdir os.rmdir os.chmod".split(),
            "os.truncate",
        ),
        *("shutil.rmtree", "subprocess.Popen"),
    )
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Killer:
    """Counts steps, and ends this process before the chosen one is taken."""

    def __init__(self, log: str, after: str, number: int) -> None:
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.after = after
        self.number = number
        self.count = 0
        self.process = os.getpid()

    def step(self, text: str) -> None:
        """Count a step."""
        if os.getpid() != self.process or (not self.count and self.after not in text):
            return
        self.count += 1
        os.write(self.log, f"{self.count} {text}\n".encode())
        if self.count == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Python's audit hook."""
        if event in _EVENTS:
            self.step(f"{event} {' '.join(map(str, arguments[:2]))}")
        elif (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & _WRITES
            and not isinstance(arguments[0], int)
        ):
            self.step(f"open {arguments[0]}")


def main(arguments: list[str]) -> None:
    """Install the hook, and run the toolkit."""
    log, after, number, _, *words = arguments
    killer = Killer(log, after, int(number))
    fsync = os.fsync

    def counted(handle: int) -> None:
        killer.step(f"fsync {Path(f'/proc/self/fd/{handle}').readlink()}")
        fsync(handle)

    os.fsync = counted  # type: ignore[assignment]
    sys.addaudithook(killer.audit)
    from toolkit.cli import main as cli

    sys.argv = ["toolkit", *words]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
