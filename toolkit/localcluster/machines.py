"""Nodes that are machines of their own: namespaces, a network cable, a /tmp and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import ToolkitError
from toolkit.localcluster.config import LOGIN_ADDRESS, NODE_LINK, NODE_PORT
from toolkit.localcluster.control import Plan, Power, StartError
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.processes import NODE_INIT, UNSHARE
from toolkit.localcluster.shape import Node, all_nodes

# An ordinary user is root in the namespaces; the daemons and their children must not be.
UNPRIVILEGED = ("setpriv", "--ambient-caps=-all", "--inh-caps=-all")


def must(*words: str, log: Path | None = None) -> None:
    """Run a command that a part of the cluster needs.

    Raises:
        StartError: it failed; ``log`` may have the reason.
    """
    try:
        shell.run(words, timeout=30)
    except ToolkitError as error:
        raise StartError(
            f"{error.cause} ({error.place})", (log,) if log else (), error.details
        ) from error


def await_slurmd(paths: Paths, node: Node, port: int, timeout: float = 20) -> None:
    """Wait until slurmd of a node takes connections; Slurm may not have noticed its absence.

    Raises:
        StartError: it does not.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((node.address, port), timeout=1).close()
            return
        time.sleep(0.05)
    raise StartError(
        f"slurmd of {node.name} did not start; see {paths.log_of(f'slurmd.{node.name}')}"
    )


class Machines:
    """The nodes of a cluster, each in namespaces of its own, seen from its first process."""

    def __init__(self, paths: Paths, plan: Plan) -> None:
        """Hold the plan; every node is off."""
        self._paths = paths
        self._plan = plan
        self._nodes: dict[str, Node] = {node.name: node for node in all_nodes(plan.shape)}
        self.power: dict[str, Power] = dict.fromkeys(self._nodes, "off")
        self._boxes: dict[str, subprocess.Popen[str]] = {}

    def prepare(self) -> None:
        """Make the switch into which the nodes' cables are plugged."""
        must("ip", "link", "add", "br0", "type", "bridge")
        must("ip", "addr", "add", f"{LOGIN_ADDRESS}/24", "dev", "br0")
        must("ip", "link", "set", "br0", "up")

    def switch_on(self, name: str) -> None:
        """Switch a node on, with its network cable plugged in."""
        if self.power[name] != "off":
            return
        node = self._nodes[name]
        log = self._paths.log_of(f"init.{name}")
        script = package_directory("localcluster") / NODE_INIT
        flag = str(int(self._plan.as_user))
        with log.open("wb") as out:
            box = shell.start(
                (
                    *UNSHARE,
                    *("bash", str(script), str(self._paths.directory)),
                    *(name, node.address, flag, *self._plan.shared),
                ),
                stdout=out.fileno(),
                stderr=out.fileno(),
                new_session=True,
            )
        self._boxes[name] = box
        self._await_network(box, log)
        with contextlib.suppress(ToolkitError):
            shell.run(("ip", "link", "del", node.link))  # of the node before it was killed
        ends = ("type", "veth", "peer", "name", NODE_LINK, "netns", str(box.pid))
        must("ip", "link", "add", node.link, *ends, log=log)
        must("ip", "link", "set", node.link, "master", "br0", "up", log=log)
        self.power[name] = "on"

    def _await_network(self, box: subprocess.Popen[str], log: Path, timeout: float = 20) -> None:
        ours = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and box.poll() is None:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{box.pid}/ns/net").readlink() != ours:
                    return
            time.sleep(0.005)
        raise StartError("a node did not get its namespaces", (log,))

    def switch_off(self, name: str) -> None:
        """Switch a node off: all of its processes are killed."""
        if self.power[name] == "off":
            return
        box = self._boxes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(box.pid, signal.SIGKILL)  # `unshare --fork` takes no notice of TERM
        box.wait()
        self.power[name] = "off"
        with contextlib.suppress(ToolkitError):  # else the kernel removes it a moment later
            shell.run(("ip", "link", "del", self._nodes[name].link))

    def cable(self, name: str, plugged: bool) -> None:
        """Unplug the node's network cable, or plug it in.

        Raises:
            StartError: the node is switched off.
        """
        if self.power[name] == "off":
            raise StartError(f"{name} is switched off; `start` it first")
        must("ip", "link", "set", self._nodes[name].link, "up" if plugged else "down")
        if plugged and self.power[name] == "cut":
            self.await_slurmd(name)  # its message would be lost while the link comes up
            self._register(name)
        self.power[name] = "on" if plugged else "cut"

    def _register(self, name: str) -> None:
        """Make a node's slurmd register with the controller, through the node's first process."""
        pid = self._boxes[name].pid
        with contextlib.suppress(OSError, ValueError):
            os.kill(
                int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]), signal.SIGHUP
            )

    def await_slurmd(self, name: str) -> None:
        """Wait until slurmd of a node takes connections."""
        await_slurmd(self._paths, self._nodes[name], NODE_PORT)

    def forget(self, pid: int) -> None:
        """Take notice that a process has ended: its node, if it was one, is off."""
        for name, box in list(self._boxes.items()):
            if box.pid == pid:
                del self._boxes[name]
                self.power[name] = "off"
