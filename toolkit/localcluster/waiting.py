"""Wait for a cluster that starts: for its first process, then for each node to become idle."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolkit.errors import CommandFailedError
from toolkit.localcluster import database
from toolkit.localcluster.control import Report, StartError
from toolkit.localcluster.daemon_logs import fatal_errors
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.status import NodeState, node_states
from toolkit.model.base import BadDataError, from_json
from toolkit.shell import Progress

# Seconds for all steps but the nodes' registration, and further ones for each node; a database on
# a slow disk takes long.
_READY_WITHIN, _READY_WITHIN_EACH = 120.0, 0.3
# The same from then to idle nodes; an idle machine takes one, and a hundredth for each.
_IDLE_WITHIN, _IDLE_WITHIN_EACH = 60.0, 0.3
_FATAL_EVERY = 2.0  # seconds between two searches of the logs
# Seconds between two queries, and further ones for each node: each is work for the controller.
_PAUSE, _PAUSE_EACH = 0.05, 0.0005
_DETAILS = {
    "network": "host names, switch",
    "munge": "authentication",
    "database": "MariaDB, slurmdbd",
    "controller": "slurmctld",
}


class Reports:
    """The messages of the first process of a cluster, read as they arrive."""

    def __init__(self, process: subprocess.Popen[str], paths: Paths) -> None:
        """Start to read them."""
        self._process = process
        self._paths = paths
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def await_ready(self, progress: Progress, nodes: int) -> None:
        """Wait until all steps but the registration of so many nodes are done.

        Raises:
            StartError: it failed, ended, or took too long.
        """
        patience = _READY_WITHIN + _READY_WITHIN_EACH * nodes
        deadline = time.monotonic() + patience
        for report in self._until(deadline):
            if report.ready:
                return
            if report.step:
                progress.begin(
                    report.step,
                    _DETAILS.get(report.step, f"{nodes} x slurmd"),
                    database.EXPECTED if report.step == "database" else None,
                )
        raise StartError(f"it took longer than {patience:g} s", (self._paths.log_of("cluster"),))

    def check(self) -> None:
        """Check that the cluster still starts.

        Raises:
            StartError: it failed or ended.
        """
        while not self._lines.empty():
            next(self._until(time.monotonic() + 1), None)

    def _until(self, deadline: float) -> Iterator[Report]:
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                return
            yield self._decode(line)

    def _decode(self, line: str | None) -> Report:
        if line is None:
            raise StartError("its first process ended", (self._paths.log_of("cluster"),))
        try:
            report = from_json(line, Report)
        except BadDataError as error:
            raise StartError(
                f"unexpected message of its first process: {line.strip()}",
                (self._paths.log_of("cluster"),),
            ) from error
        if report.failed:
            raise StartError(
                report.failed,
                (*map(Path, report.logs), self._paths.log_of("cluster")),
                report.details,
            )
        return report


def await_idle(paths: Paths, names: Sequence[str], reports: Reports, prefix: Sequence[str]) -> None:
    """Wait until every node is idle.

    Raises:
        StartError: a node is not idle in time, or the controller ended or does not answer.
    """
    patience = _IDLE_WITHIN + _IDLE_WITHIN_EACH * len(names)
    checked = began = time.monotonic()
    deadline = began + patience
    states: dict[str, NodeState] | None = None
    while time.monotonic() < deadline:
        reports.check()
        try:
            states = node_states(prefix, timeout=15)
        except CommandFailedError:
            states = None
        if states is not None and all(name in states and states[name].usable for name in names):
            return
        if time.monotonic() > checked + _FATAL_EVERY:
            if fatal_errors(paths.daemon_logs()):
                break  # this daemon has ended itself, and no node becomes idle without it
            checked = time.monotonic()
        time.sleep(max(_PAUSE, _PAUSE_EACH * len(names)))
    raise _not_idle(paths, names, states, time.monotonic() - began)


def _not_idle(
    paths: Paths, names: Sequence[str], states: dict[str, NodeState] | None, seconds: float
) -> StartError:
    controller = paths.log_of("slurmctld")
    if states is None:
        return StartError(
            "the controller does not answer", (controller, paths.logs / "slurmctld.out")
        )
    by_name = {name: states.get(name, NodeState("unknown")) for name in names}
    bad = next(name for name, state in by_name.items() if not state.usable)
    count = sum(not state.usable for state in by_name.values())
    why = f" ({by_name[bad].reason})" if by_name[bad].reason else ""
    others = f", and {count - 1} more" if count > 1 else ""
    logs = (
        paths.log_of(f"slurmd.{bad}"),
        paths.logs / f"slurmd.{bad}.out",
        paths.log_of(f"init.{bad}"),
        controller,
    )
    return StartError(f"{bad} is {by_name[bad].state}{why} after {seconds:.0f} s{others}", logs)
