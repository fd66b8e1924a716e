"""Wait for a cluster that starts, and read in the logs of its daemons why it does not."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from toolkit.errors import ClusterError
from toolkit.localcluster import access, processes
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.status import NodeState, node_states
from toolkit.shell import Progress

# Seconds until all nodes are idle, and further ones for each node; a database on a slow disk takes
# long. An idle machine takes two, and a hundredth for each.
_IDLE_WITHIN, _IDLE_WITHIN_EACH = 180.0, 0.6
_FATAL_EVERY = 2.0  # seconds between two searches of the logs
# Seconds between two queries, and further ones for each node: each is work for the controller.
_PAUSE, _PAUSE_EACH = 0.05, 0.0005
_LOGS = {"munge": ("munged",), "database": ("mariadb", "slurmdbd")}
_NAMED = 3  # daemons in a message
_TAIL = 12  # lines of a log in a message
_FATAL = "fatal: "  # begins what a daemon of Slurm prints before it ends itself
# slurmd prints this instead in some places, after the error (slurmd.c, _slurmd_init).
_NOT_STARTED = "slurmd initialization failed"
_AT_MOST = 1 << 20  # bytes at the end of a log that are read


def await_idle(
    paths: Paths, process: subprocess.Popen[str], names: Sequence[str], progress: Progress
) -> int:
    """Wait until every node is idle; return the first process of the cluster.

    Args:
        paths: of the cluster.
        process: that started it, and ends with it.
        names: of all nodes.
        progress: shows the steps.

    Raises:
        ClusterError: a part of it did not start, or a node is not idle in time; with the reasons
            in the daemons' logs.
    """
    patience = _IDLE_WITHIN + _IDLE_WITHIN_EACH * len(names)
    searched = began = time.monotonic()
    step, states = "", dict[str, NodeState]()
    while time.monotonic() < began + patience:
        has_ended = process.poll() is not None  # before the step is read, which then is the last
        now = paths.step.read_text().strip() if paths.step.exists() else ""
        if now not in (step, "", "started"):
            step = now
            progress.begin(step)
        if has_ended:
            rows = _rows(paths.log_of("cluster"))
            raise _failed(paths, rows[-1] if rows else "its first process ended", step)
        if now == "started" and (pid := processes.first_process(paths)):
            states = node_states(access.prefix(paths, pid, "/"), timeout=15)
            if all(states.get(name, NodeState()).usable for name in names):
                return pid
        if time.monotonic() > searched + _FATAL_EVERY:
            if fatal_errors(paths):
                break  # this daemon has ended itself, and no node becomes idle without it
            searched = time.monotonic()
        time.sleep(max(_PAUSE, _PAUSE_EACH * len(names)))
    node = next((name for name in names if not states.get(name, NodeState()).usable), "")
    state, reason = states.get(node, NodeState())
    cause = f"{node} is {state}{f' ({reason})' if reason else ''}"
    cause = cause if states else "the controller does not answer"
    raise _failed(paths, f"{cause} after {time.monotonic() - began:.0f} s", step, node)


def _failed(paths: Paths, cause: str, step: str, node: str = "") -> ClusterError:
    """Return the error of a start with what the daemons' logs say; why one stopped comes first."""
    causes = fatal_errors(paths)[:_NAMED]
    logs = [*_LOGS.get(step, ()), *((f"slurmd.{node}", f"init.{node}") if node else ())]
    rows = (*causes, cause, *_tails(paths, (*logs, "slurmctld", "cluster")))
    next_step = "nothing of it is left; fix the error in the log, then: toolkit cluster up"
    if any("unshare failed" in row or "Operation not permitted" in row for row in rows):
        next_step = "namespaces are not permitted: run as root, or in a container with --privileged"
    start = f"the local cluster did not start: {rows[0]}"
    return ClusterError(start, details=rows[1:], next_step=next_step)


def _tails(paths: Paths, subjects: Iterable[str]) -> list[str]:
    """Return the last lines of each log, or of what was printed before it was open."""
    tails = []
    for log in map(paths.log_of, dict.fromkeys(subjects)):
        read = log if _rows(log) else log.with_suffix(".out")
        if rows := _rows(read):
            tails += [f"{read.name}:", *rows[-_TAIL:]]
    return tails


def fatal_errors(paths: Paths) -> list[str]:
    """Return what daemons printed before they ended themselves, after their names."""
    causes = []
    for log in sorted(paths.logs.glob("slurm*")):
        for before, row in pairwise(["", *_rows(log)]):
            _, is_fatal, text = row.partition(_FATAL)
            if is_fatal or row.endswith(_NOT_STARTED):
                causes.append((log.stem, text.strip() or before.partition("error: ")[2]))
    return [f"{daemon} stopped: {why or _NOT_STARTED}" for daemon, why in dict.fromkeys(causes)]


def _rows(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _AT_MOST))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [row for row in text.split("\n") if row.strip()]
