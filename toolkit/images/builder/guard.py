"""Run a program so that none of its processes outlives the tool.

``python -m toolkit.images.builder.guard [--mark WORD] DIRECTORY... -- PROGRAM ARGUMENT...``

Apptainer starts helpers in sessions and namespaces of their own, and none of them ends when the
tool is killed with -9. This process is between them: its standard input is a pipe without data,
whose other end the tool holds. When the tool is gone, for whatever reason, the pipe ends, and then
everything below this process is killed and the directories are removed. It is a "subreaper":
descendants whose parents end become its children, so none can escape.

What a service does for the program is not below this process. It is found by a word in its
environment.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toolkit.images.host.kernel import LIBC, die_with_parent
from toolkit.images.host.remove import clear

_PR_SET_CHILD_SUBREAPER = 36
_TIMEOUT = 30.0  # seconds to wait for a process that hangs in the kernel
# Seconds without any process of a service, after which it will start no more of them.
_QUIET = 1.0


def descendants(root: int) -> dict[int, bool]:
    """Return every process below ``root`` by its id, and whether it is alive.

    A process that is not waits for its parent to read its exit code.
    """
    children: dict[int, dict[int, bool]] = {}
    for process in _processes():
        try:
            status = (process / "stat").read_text(errors="replace")
            state, parent = status.rsplit(")", 1)[1].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        children.setdefault(int(parent), {})[int(process.name)] = state not in "ZX"
    result: dict[int, bool] = {}
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), {})
        result |= below
        waiting += below
    return result


def _processes() -> Iterable[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        # It has ended, or it is a setuid helper that ends by itself.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _kill_descendants() -> None:
    """Kill until nothing is left, not even a dead process.

    A process that began during a search may be hidden by its parent's end.
    """
    until = time.monotonic() + _TIMEOUT
    while (below := descendants(os.getpid())) and time.monotonic() < until:
        _kill(pid for pid, is_alive in below.items() if is_alive)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _kill_marked(mark: str, quiet: float) -> None:
    """Kill every process with the word in its environment, until there was none for a while."""
    until = time.monotonic() + _TIMEOUT
    calm = time.monotonic() + quiet
    while True:
        pids = [pid for pid in _marked(mark.encode()) if pid != os.getpid()]
        _kill(pids)
        now = time.monotonic()
        calm = now + quiet if pids else calm
        if now >= until or (now >= calm and not pids):
            return
        time.sleep(0.02)


def _marked(mark: bytes) -> Iterable[int]:
    for process in _processes():
        with suppress(OSError):  # it belongs to another user, or has ended
            if mark in (process / "environ").read_bytes():
                yield int(process.name)


def _wait(process: subprocess.Popen[bytes], woken: int) -> bool:
    """Wait until the program has ended (True), or until the tool or this process must (False)."""
    while process.poll() is None:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready and signal.SIGTERM in os.read(woken, 64):
            return False
        if 0 in ready and not os.read(0, 64):
            return False
    return True


def main(arguments: list[str]) -> int:
    """Run the program after ``--``; return its exit code, or 137 if it was killed."""
    mark = arguments[1] if arguments[0] == "--mark" else ""
    arguments = arguments[2:] if mark else arguments
    split = arguments.index("--")
    directories, command = arguments[:split], arguments[split + 1 :]
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.environ.pop("PYTHONPATH", None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    has_ended = _wait(process, woken)
    code = process.returncode if has_ended else 137
    _kill_descendants()
    if mark and code != 0:
        _kill_marked(mark, 0.0 if has_ended else _QUIET)
    if not has_ended:
        for directory in directories:
            clear(Path(directory))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
