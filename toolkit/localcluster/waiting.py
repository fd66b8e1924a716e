"""Wait for a cluster that starts: first its own process says what it does, then each node becomes idle."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolkit.errors import CommandFailedError
from toolkit.localcluster import database
from toolkit.localcluster.failure import StartError
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.plan import Report
from toolkit.localcluster.states import NodeState, node_states
from toolkit.model.base import BadDataError, from_json
from toolkit.progress import Progress

READY_WITHIN = 120.0  # seconds for everything but the nodes' registration; a database takes its time on a slow disk
IDLE_WITHIN = 60.0  # seconds from then to idle nodes; a machine at rest takes one
_DETAILS = {
    "network": "host names, switch",
    "munge": "authentication",
    "database": "MariaDB, slurmdbd",
    "controller": "slurmctld",
    "limits": "sacctmgr",
}


class Reports:
    """What the first process of a cluster says, read as it comes."""

    def __init__(self, process: subprocess.Popen[str], paths: Paths) -> None:
        self._process = process
        self._paths = paths
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def await_ready(self, progress: Progress) -> None:
        """Until all but the nodes' registration is done.

        Raises:
            StartError: it failed, ended, or took too long.
        """
        deadline = time.monotonic() + READY_WITHIN
        for report in self._until(deadline):
            if report.ready:
                return
            if report.step and report.step != "nodes":
                progress.begin(
                    report.step,
                    _DETAILS.get(report.step, ""),
                    database.EXPECTED if report.step == "database" else None,
                )
        raise StartError(
            f"it took longer than {READY_WITHIN:g} s", (self._paths.log_of("cluster"),)
        )

    def check(self) -> None:
        """Nothing, while the cluster runs.

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
            yield self._understood(line)

    def _understood(self, line: str | None) -> Report:
        if line is None:
            raise StartError("its first process ended", (self._paths.log_of("cluster"),))
        try:
            report = from_json(line, Report)
        except BadDataError as error:
            raise StartError(
                f"its first process said something strange: {line.strip()}",
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
    """Until every node is idle.

    Raises:
        StartError: a node is not within a minute, or the controller ended or does not answer.
    """
    deadline = time.monotonic() + IDLE_WITHIN
    states: dict[str, NodeState] | None = None
    while time.monotonic() < deadline:
        reports.check()
        try:
            states = node_states(prefix, timeout=15)
        except CommandFailedError:
            states = None
        if states is not None and all(name in states and states[name].usable for name in names):
            return
        time.sleep(0.05)
    raise _not_idle(paths, names, states)


def _not_idle(
    paths: Paths, names: Sequence[str], states: dict[str, NodeState] | None
) -> StartError:
    controller = paths.log_of("slurmctld")
    if states is None:
        return StartError(
            "the controller does not answer", (controller, paths.logs / "slurmctld.out")
        )
    found = {name: states.get(name, NodeState("unknown")) for name in names}
    bad = next(name for name, state in found.items() if not state.usable)
    count = sum(not state.usable for state in found.values())
    why = f" ({found[bad].reason})" if found[bad].reason else ""
    others = f", and {count - 1} more" if count > 1 else ""
    logs = (
        paths.log_of(f"slurmd.{bad}"),
        paths.logs / f"slurmd.{bad}.out",
        paths.log_of(f"init.{bad}"),
        controller,
    )
    return StartError(f"{bad} is {found[bad].state}{why} after {IDLE_WITHIN:g} s{others}", logs)
