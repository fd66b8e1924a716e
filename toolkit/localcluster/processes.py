"""Find and end the processes of a cluster.

They are recognized by their exact arguments, which name the cluster's directory, and by their
owner: a file with a process id is not reliable after a crash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from toolkit.errors import ClusterError
from toolkit.localcluster.paths import Paths

CLUSTER_INIT = "cluster-init.sh"
NODE_INIT = "node-init.sh"
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_ENDED_WITHIN = 20.0  # seconds


def all_pids() -> Iterator[int]:
    """Return the ids of all processes."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _arguments(pid: int) -> tuple[str, ...]:
    """Return the command line of a process; empty if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except _GONE:
        return ()
    return tuple(os.fsdecode(word) for word in text.rstrip(b"\0").split(b"\0")) if text else ()


def _arguments_of(script: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments of a script that a process, or the `unshare` before it, runs."""
    for number, word in enumerate(words[1:], 1):
        if word.endswith(f"/{script}") and words[number - 1] == "bash":
            return words[number + 1 :]
    return ()


def _status(pid: int) -> dict[str, list[str]]:
    try:
        rows = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except _GONE:
        return {}
    return {name: rest.split() for name, _, rest in (row.partition(":") for row in rows)}


def _is_own(pid: int) -> bool:
    return _status(pid).get("Uid", [""])[0] == str(os.getuid())


def _is_first(pid: int) -> bool:
    """Return whether it is process 1 of a process namespace below ours."""
    ids = _status(pid).get("NSpid", [])
    return len(ids) > 1 and ids[-1] == "1"


def is_init(pid: int, paths: Paths) -> bool:
    """Return whether a process is the first of this cluster, a copy of it, or its `unshare`."""
    named = _arguments_of(CLUSTER_INIT, _arguments(pid))[:1] == (str(paths.directory),)
    return named and _is_own(pid)


def inits(paths: Paths) -> tuple[int, ...]:
    """Return the first processes of this cluster and their `unshare`; () if it does not run."""
    return tuple(pid for pid in all_pids() if is_init(pid, paths))


def first_process(paths: Paths) -> int | None:
    """Return process 1 of the cluster, by its number in our namespace."""
    return next((pid for pid in inits(paths) if _is_first(pid)), None)


def is_within(paths: Paths) -> bool:
    """Return whether this process is in the cluster, on its login side or on a node."""
    directory = str(paths.directory)
    return is_on_node(paths) or _arguments_of(CLUSTER_INIT, _arguments(1))[:1] == (directory,)


def is_on_node(paths: Paths) -> bool:
    """Return whether this process is on a node of the cluster that has processes of its own."""
    return _arguments_of(NODE_INIT, _arguments(1))[:1] == (str(paths.directory),)


def node_processes(paths: Paths) -> dict[str, int]:
    """Return process 1, or slurmd of a light node, of each node that is switched on.

    Their numbers are those that they have here.
    """
    pids = {}
    for pid in all_pids():
        words = _arguments(pid)
        script = _arguments_of(NODE_INIT, words)
        # The arguments of a light node's slurmd: the file tells whose it is.
        if words[:3] == ("slurmd", "-D", "-N") and words[4:] == ("-f", str(paths.conf)):
            name = words[3]
        elif script[:1] == (str(paths.directory),) and len(script) > 1 and _is_first(pid):
            name = script[1]
        else:
            continue
        if _is_own(pid):
            pids[name] = pid
    return pids


def _kill_all(pids_of: Callable[[], Collection[int]]) -> Collection[int]:
    """Kill processes until there are none, since one may start another between two looks.

    Returns:
        Those that do not end.
    """
    deadline = time.monotonic() + _ENDED_WITHIN
    while (pids := pids_of()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return pids


def stop(paths: Paths) -> bool:
    """Kill the cluster.

    All of its processes die with its first one, and namespaces, mounts and interfaces with them.

    Returns:
        Whether there was a process to kill.

    Raises:
        ClusterError: a process does not end.
    """
    running = inits(paths)
    if left := _kill_all(lambda: inits(paths)):
        raise ClusterError(
            f"processes of cluster {paths.name} do not end",
            place=", ".join(map(str, left)),
            next_step="inspect them with ps; "
            "a process in state D waits for a disk or a network file system",
        )
    return bool(running)


def kill_node(paths: Paths, name: str) -> None:
    """Kill all processes of a node that is switched on.

    Raises:
        ClusterError: one does not end.
    """
    pid = node_processes(paths).get(name)
    # A light node's are those in the namespace of its host name; process 1 takes all with it.
    namespace = _host_namespace(pid) if pid else ""
    if not namespace or node_processes(paths).get(name) != pid:
        return  # it has ended, and its number may be another's, perhaps of the machine itself
    if left := _kill_all(
        lambda: [each for each in all_pids() if _host_namespace(each) == namespace]
    ):
        raise ClusterError(f"processes of {name} do not end: {left}")


def _host_namespace(pid: int) -> str:
    """Return what identifies the namespace of a process's host name; empty if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")  # noqa: PTH115
    except OSError:
        return ""
