"""Find and end the processes of a cluster.

They are recognized by their exact arguments, which name the cluster's directory, and by their
owner: a file with a process id is not reliable after a crash.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ClusterError
from toolkit.localcluster.paths import Paths

SUPERVISOR = "toolkit.localcluster.supervisor"
NODE_INIT = "node-init.sh"
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
# Runs a command as process 1 of namespaces of its own, and ends it when it is ended itself.
UNSHARE = ("unshare", "--uts", "--mount", "--ipc", "--net", "--pid", "--fork", "--kill-child")


def arguments(pid: int) -> tuple[str, ...]:
    """Return the command line of a process; empty if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except _GONE:
        return ()
    return tuple(os.fsdecode(word) for word in text.rstrip(b"\0").split(b"\0")) if text else ()


def _status(pid: int) -> dict[str, list[str]]:
    try:
        rows = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except _GONE:
        return {}
    return {name: rest.split() for name, _, rest in (row.partition(":") for row in rows)}


def is_supervisor(pid: int, paths: Paths) -> bool:
    """Return whether a process is the first of this cluster, or the `unshare` that waits for it."""
    return arguments(pid)[-3:] == ("-m", SUPERVISOR, str(paths.directory)) and _is_own(pid)


def _is_own(pid: int) -> bool:
    return _status(pid).get("Uid", [""])[0] == str(os.getuid())


def is_first(pid: int) -> bool:
    """Return whether it is process 1 of a process namespace below ours."""
    ids = _status(pid).get("NSpid", [])
    return len(ids) > 1 and ids[-1] == "1"


def is_within(paths: Paths) -> bool:
    """Return whether this process is in the cluster, on its login side or on a node."""
    words = arguments(1)
    return words[-3:] == ("-m", SUPERVISOR, str(paths.directory)) or (
        len(words) > 2 and words[1].endswith("/" + NODE_INIT) and words[2] == str(paths.directory)
    )


def all_pids() -> Iterator[int]:
    """Return the ids of all processes."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def supervisors(paths: Paths) -> tuple[int, ...]:
    """Return the first processes of this cluster and their `unshare`; () if it does not run."""
    return tuple(pid for pid in all_pids() if is_supervisor(pid, paths))


def first_process(paths: Paths) -> int | None:
    """Return process 1 of the cluster, by its number in our namespace."""
    return next((pid for pid in supervisors(paths) if is_first(pid)), None)


def node_process(paths: Paths, node: str) -> int | None:
    """Return process 1 of a node, or slurmd of a light one; None if the node is switched off.

    Its number is the one that it has here.
    """
    light = light_arguments(paths, node)
    for pid in all_pids():
        words = arguments(pid)
        start = next(
            (index for index, word in enumerate(words) if word.endswith("/" + NODE_INIT)), None
        )
        named = start is not None and words[start + 1 : start + 3] == (str(paths.directory), node)
        if (words == light or (named and is_first(pid))) and _is_own(pid):
            return pid
    return None


def light_arguments(paths: Paths, node: str) -> tuple[str, ...]:
    """Return the command line of a light node's slurmd; the file tells whose it is."""
    return ("slurmd", "-D", "-N", node, "-f", str(paths.conf))


def stop(paths: Paths, timeout: float = 20) -> bool:
    """Kill the cluster.

    All of its processes die with its first one, and namespaces, mounts and interfaces with them.

    Returns:
        Whether there was a process to kill.

    Raises:
        ClusterError: a process still exists after ``timeout`` seconds.
    """
    running = supervisors(paths)
    deadline = time.monotonic() + timeout
    left = running
    while left:
        for pid in left:
            _kill(pid, paths)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"processes of cluster {paths.name} do not end",
                place=", ".join(map(str, left)),
                next_step="inspect them with ps; "
                "a process in state D waits for a disk or a network file system",
            )
        time.sleep(0.02)
        left = supervisors(paths)
    return bool(running)


def _kill(pid: int, paths: Paths) -> None:
    """Kill a process of ours, through a handle that cannot refer to another process later."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3
        if is_supervisor(pid, paths):
            os.kill(pid, signal.SIGKILL)
        return
    try:
        if is_supervisor(pid, paths):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
