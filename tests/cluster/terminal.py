"""A terminal for a command, as a person has one: its size can be changed, keys can be pressed, and what is on it can be read."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Terminal:
    """A command that was started at a terminal of its own."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self.seen = ""
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), dict(env))
        self.resize(33, 101)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def until(self, words: str, *, seconds: float = 90) -> str:
        """Read until something is on the terminal; what was on it since the last time."""
        end = time.monotonic() + seconds
        while words not in self.seen:
            assert time.monotonic() < end, f"{words!r} did not come:\n{self.seen}"
            assert self._read(), f"it ended before {words!r} came:\n{self.seen}"
        before, self.seen = self.seen.split(words, 1)
        return before

    def ask(self, command: str, number: int) -> str:
        """Type a command and return what it printed; the number marks its end, and is not what was typed."""
        self.press(f"{command}; echo END$(({number}+0))\n")
        return self.until(f"END{number}").rsplit("\n", 2)[-2].strip()

    def code(self, *, seconds: float = 180) -> int:
        """Read to the end, and return the exit code."""
        end = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < end, f"it did not end:\n{self.seen}"
        _, status = os.waitpid(self._pid, 0)
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        """Read what there is; False: nobody is there any more."""
        if not select.select([self._descriptor], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._descriptor, 4096)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)
