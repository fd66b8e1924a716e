"""Nodes that share the cluster's namespaces: a slurmd with a host name and an address each.

A thousand fit on one machine, where a machine of its own for each would take a network, mounts and
a first process. What they share is written in the help of `toolkit cluster up`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from toolkit import shell
from toolkit.localcluster.config import LOGIN_ADDRESS, NODE_LINK, light_port
from toolkit.localcluster.control import Plan, Power, StartError
from toolkit.localcluster.machines import UNPRIVILEGED, await_slurmd, must
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.processes import all_pids, light_arguments
from toolkit.localcluster.shape import Node, all_nodes

_NEWUTS = 0x04000000  # of sched.h
_KILLED_WITHIN = 10.0  # seconds


class LightNodes:
    """The nodes of a cluster that share its namespaces, seen from its first process."""

    def __init__(self, paths: Paths, plan: Plan) -> None:
        """Hold the plan; every node is off."""
        self._paths = paths
        self._drop = UNPRIVILEGED if plan.as_user else ()
        self._nodes: dict[str, Node] = {node.name: node for node in all_nodes(plan.shape)}
        self.power: dict[str, Power] = dict.fromkeys(self._nodes, "off")
        self._daemons: dict[str, subprocess.Popen[str]] = {}
        self._names: dict[int, str] = {}

    def prepare(self) -> None:
        """Make the one interface with the addresses of the login side and of all nodes."""
        addresses = (
            f"{LOGIN_ADDRESS}/16",
            *(f"{node.address}/32" for node in self._nodes.values()),
        )
        file = self._paths.run / "addresses"
        file.write_text("".join(f"address add {each} dev {NODE_LINK}\n" for each in addresses))
        must("ip", "link", "add", NODE_LINK, "type", "bridge")
        must("ip", "-batch", str(file))
        must("ip", "link", "set", NODE_LINK, "up")

    def switch_on(self, name: str) -> None:
        """Start the slurmd of a node, under its host name."""
        if self.power[name] != "off":
            return
        with (
            _host_name(name),
            self._paths.log_of(f"slurmd.{name}").with_suffix(".out").open("wb") as out,
        ):
            process = shell.start(
                (*self._drop, *light_arguments(self._paths, name)),
                stdout=out.fileno(),
                stderr=out.fileno(),
                new_session=True,
                cwd="/",
            )
        self._daemons[name], self._names[process.pid] = process, name
        self.power[name] = "on"

    def switch_off(self, name: str) -> None:
        """Kill all processes of a node: those that are in the namespace of its host name.

        Raises:
            StartError: one does not end.
        """
        if self.power[name] == "off":
            return
        namespace = _namespace(self._daemons[name].pid)
        deadline = time.monotonic() + _KILLED_WITHIN
        # Until there is none: a process may start another between two looks.
        while pids := [pid for pid in all_pids() if namespace and _namespace(pid) == namespace]:
            if time.monotonic() > deadline:
                raise StartError(f"processes of {name} do not end: {pids}")
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._daemons[name].wait()
        self.forget(self._daemons[name].pid)

    def cable(self, name: str, plugged: bool) -> None:
        """Refuse: the nodes have one network.

        Raises:
            StartError: always.
        """
        raise StartError(
            f"{name} has no network cable of its own to {'join' if plugged else 'cut'}, since the"
            " nodes of this cluster are light; `toolkit cluster kill` works, and so does a cluster"
            " of at most 200 nodes without --light"
        )

    def await_slurmd(self, name: str) -> None:
        """Wait until slurmd of a node takes connections."""
        await_slurmd(self._paths, self._nodes[name], light_port(self._nodes[name]))

    def forget(self, pid: int) -> None:
        """Take notice that a process has ended: its node, if it was one, is off."""
        if name := self._names.pop(pid, None):
            del self._daemons[name]
            self.power[name] = "off"


def _namespace(pid: int) -> str:
    """Return what identifies the namespace of a process's host name; empty if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")  # noqa: PTH115
    except OSError:
        return ""


@contextlib.contextmanager
def _host_name(name: str) -> Iterator[None]:
    """Give what this thread starts meanwhile a host name in a namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _require(libc.unshare(_NEWUTS))
        try:
            socket.sethostname(name)
            yield
        finally:
            _require(libc.setns(own, _NEWUTS))
    finally:
        os.close(own)


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
