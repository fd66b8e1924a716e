"""Start the parts of a cluster in its namespaces: the network, the daemons, the nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.localcluster import database
from toolkit.localcluster.config import LOGIN, LOGIN_ADDRESS, NODE_PORT
from toolkit.localcluster.control import Plan, Power, StartError
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.processes import NODE_INIT, UNSHARE
from toolkit.localcluster.shape import Node, all_nodes
from toolkit.resources import package_directory

# An ordinary user is root in the namespaces; the daemons and their children must not be.
UNPRIVILEGED = ("setpriv", "--ambient-caps=-all", "--inh-caps=-all")


class Services:
    """The daemons and nodes of a cluster, in its first process."""

    def __init__(self, paths: Paths, plan: Plan) -> None:
        """Hold the plan; nothing is started."""
        self.paths = paths
        self.plan = plan
        self.nodes: dict[str, Node] = {node.name: node for node in all_nodes(plan.shape)}
        self.power: dict[str, Power] = dict.fromkeys(self.nodes, "off")
        self.daemons: dict[str, subprocess.Popen[str]] = {}
        self._boxes: dict[str, subprocess.Popen[str]] = {}

    def start(self, step: Callable[[str], None]) -> None:
        """Start all parts in order, and call ``step`` with the name of each.

        Raises:
            StartError: a part of it did not start.
        """
        step("network")
        self._host()
        step("munge")
        self._munge()
        if self.plan.shape.accounting:
            step("database")
            database.start(self.paths, self.plan, self.daemon)
        step("controller")
        self.daemon("slurmctld", "slurmctld", "-D")
        if self.plan.shape.limits:
            step("limits")
            database.limit_gpus(self.paths, self.plan)
        step("nodes")
        for name in self.nodes:
            self.switch_on(name)

    def daemon(self, name: str, *words: str) -> subprocess.Popen[str]:
        """Start a daemon; its output before its log is open goes to ``<name>.out``."""
        drop = UNPRIVILEGED if self.plan.as_user else ()
        with self.paths.logs.joinpath(f"{name}.out").open("wb") as out:
            process = shell.start(
                [*drop, *words], stdout=out.fileno(), stderr=out.fileno(), new_session=True
            )
        self.daemons[name] = process
        return process

    def _host(self) -> None:
        socket.sethostname(LOGIN)
        self._must("mount", "-t", "proc", "proc", "/proc")
        for name in ("hosts", "nsswitch.conf"):
            if Path("/etc", name).exists():
                self._must("mount", "--bind", str(self.paths.etc / name), f"/etc/{name}")
        # For programs that call Slurm with an empty environment; all others have SLURM_CONF.
        if Path("/etc/slurm").is_dir():
            self._must("mount", "--bind", str(self.paths.etc), "/etc/slurm")
        self._must("ip", "link", "set", "lo", "up")
        self._must("ip", "link", "add", "br0", "type", "bridge")
        self._must("ip", "addr", "add", f"{LOGIN_ADDRESS}/24", "dev", "br0")
        self._must("ip", "link", "set", "br0", "up")

    def _munge(self) -> None:
        secret = self.paths.secrets
        self._must(
            *(UNPRIVILEGED if self.plan.as_user else ()),
            "munged",
            # In a user namespace / has no known owner, which munged refuses.
            "--force",
            f"--key-file={secret / 'key'}",
            f"--seed-file={secret / 'seed'}",
            f"--pid-file={secret / 'pid'}",
            f"--socket={self.paths.run / 'munge.socket'}",
            f"--log-file={self.paths.log_of('munged')}",
            log=self.paths.log_of("munged"),
        )

    def _must(self, *words: str, log: Path | None = None) -> None:
        try:
            shell.run(words, timeout=30)
        except ToolkitError as error:
            raise StartError(
                f"{error.cause} ({error.place})", (log,) if log else (), error.details
            ) from error

    def switch_on(self, name: str) -> None:
        """Switch a node on, with its network cable plugged in."""
        if self.power[name] != "off":
            return
        node = self.nodes[name]
        log = self.paths.log_of(f"init.{name}")
        script = package_directory("localcluster") / NODE_INIT
        flag = str(int(self.plan.as_user))
        with log.open("wb") as out:
            box = shell.start(
                (
                    *UNSHARE,
                    *("bash", str(script), str(self.paths.directory)),
                    *(name, node.address, flag, *self.plan.shared),
                ),
                stdout=out.fileno(),
                stderr=out.fileno(),
                new_session=True,
            )
        self._boxes[name] = box
        self._await_network(box, log)
        with contextlib.suppress(ToolkitError):
            shell.run(("ip", "link", "del", node.link))  # of the node before it was killed
        self._must(
            "ip",
            "link",
            "add",
            node.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(box.pid),
            log=log,
        )
        self._must("ip", "link", "set", node.link, "master", "br0", "up", log=log)
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
        with contextlib.suppress(ToolkitError):
            shell.run(
                ("ip", "link", "del", self.nodes[name].link)
            )  # else the kernel removes it a moment later

    def cable(self, name: str, plugged: bool) -> None:
        """Unplug the node's network cable, or plug it in.

        Raises:
            StartError: the node is switched off.
        """
        if self.power[name] == "off":
            raise StartError(f"{name} is switched off; `start` it first")
        self._must("ip", "link", "set", self.nodes[name].link, "up" if plugged else "down")
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

    def await_slurmd(self, name: str, timeout: float = 20) -> None:
        """Wait until slurmd of a node takes connections; Slurm may not have noticed its absence."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection((self.nodes[name].address, NODE_PORT), timeout=1).close()
                return
            time.sleep(0.05)
        raise StartError(
            f"slurmd of {name} did not start; see {self.paths.log_of(f'slurmd.{name}')}"
        )

    def reap(self) -> tuple[str, ...]:
        """Reap every process that has ended, also orphans; return the daemons among them."""
        ended: list[str] = []
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended += [name for name, process in self.daemons.items() if process.pid == pid]
            for name, box in list(self._boxes.items()):
                if box.pid == pid:
                    del self._boxes[name]
                    self.power[name] = "off"
        for name in ended:
            del self.daemons[name]
        return tuple(ended)
