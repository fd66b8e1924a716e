"""Runs a program so that nothing of it outlives the tool.

``python -m toolkit.images.build.guard [--mark WORD] DIRECTORY... -- PROGRAM ARGUMENT...``

Apptainer starts helpers in sessions and namespaces of their own, and none of them ends when
somebody kills the tool with -9. This process stands between: its standard input is a pipe that
nobody writes to, whose other end the tool holds. When the tool is gone, for whatever reason, the
pipe ends, and then everything below this process is killed and the directories are removed. It is a
"subreaper": descendants whose parents end become its children, so none can get away.

What a service does for the program is not below this process. It is found by a word in its
environment, where there is one.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE = (
    30.0  # seconds until it gives up on a process that does not die: one that hangs in the kernel
)
_QUIET = 1.0  # seconds without any process of a service, until it will start none any more: it may have been about to
_LIBC = ctypes.CDLL(None, use_errno=True)


def descendants(root: int) -> dict[int, bool]:
    """Every process below ``root``, by process id, and whether it lives (True) or waits for its parent to take note of its end."""
    children: dict[int, dict[int, bool]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (
                    (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[:2]
                )
            except (OSError, ValueError):
                continue  # it has ended meanwhile
            children.setdefault(int(parent), {})[int(entry.name)] = state not in "ZX"
    found: dict[int, bool] = {}
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), {})
        found |= below
        waiting += below
    return found


def _kill_descendants() -> None:
    """Until there is nothing left, not even a dead process: one that began while we looked may hide behind its parent's end."""
    until = time.monotonic() + _PATIENCE
    while (found := descendants(os.getpid())) and time.monotonic() < until:
        for pid in (pid for pid, lives in found.items() if lives):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # it has ended, or it is a setuid helper that ends by itself
        _reap()
        time.sleep(0.01)


def _kill_marked(mark: str, quiet: float) -> None:
    """Everything that has the word in its environment, until nothing had it for a while."""
    until = time.monotonic() + _PATIENCE
    calm = time.monotonic() + quiet
    while True:
        found = [pid for pid in _marked(mark.encode()) if pid != os.getpid()]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        now = time.monotonic()
        calm = now + quiet if found else calm
        if now >= until or (now >= calm and not found):
            return
        time.sleep(0.02)


def _marked(mark: bytes) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # of another user, or it has ended
    return found


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(process: subprocess.Popen[bytes], woken: int) -> bool:
    """Until the program has ended (True), or the tool has, or somebody ends us (False)."""
    while process.poll() is None:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready and signal.SIGTERM in os.read(woken, 64):
            return False
        if 0 in ready and not os.read(0, 64):
            return False
    return True


def main(arguments: list[str]) -> int:
    """Run the program after ``--``; its exit code, or 137 where it was killed."""
    mark = arguments[1] if arguments[0] == "--mark" else ""
    arguments = arguments[2:] if mark else arguments
    split = arguments.index("--")
    directories, command = arguments[:split], arguments[split + 1 :]
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.environ.pop("PYTHONPATH", None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    ended = _wait(process, woken)
    code = process.returncode if ended else 137
    _kill_descendants()
    if mark and code != 0:
        _kill_marked(mark, 0.0 if ended else _QUIET)
    if not ended:
        from toolkit.images.build.remove import remove

        for directory in directories:
            remove(Path(directory))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
