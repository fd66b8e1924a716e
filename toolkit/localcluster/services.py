"""Start the parts of a cluster in its namespaces: the network, the daemons, the nodes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from toolkit import shell
from toolkit.localcluster import database
from toolkit.localcluster.config import LOGIN
from toolkit.localcluster.control import Plan
from toolkit.localcluster.light import LightNodes
from toolkit.localcluster.machines import UNPRIVILEGED, Machines, must
from toolkit.localcluster.paths import Paths


class Services:
    """The daemons and nodes of a cluster, in its first process."""

    def __init__(self, paths: Paths, plan: Plan) -> None:
        """Hold the plan; nothing is started."""
        self.paths = paths
        self.plan = plan
        self.daemons: dict[str, subprocess.Popen[str]] = {}
        self.nodes = (LightNodes if plan.shape.is_light else Machines)(paths, plan)

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
        step("nodes")
        for name in self.nodes.power:
            self.nodes.switch_on(name)

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
        must("mount", "-t", "proc", "proc", "/proc")
        for name in ("hosts", "nsswitch.conf"):
            if Path("/etc", name).exists():
                must("mount", "--bind", str(self.paths.etc / name), f"/etc/{name}")
        # For programs that call Slurm with an empty environment; all others have SLURM_CONF.
        if Path("/etc/slurm").is_dir():
            must("mount", "--bind", str(self.paths.etc), "/etc/slurm")
        must("ip", "link", "set", "lo", "up")
        self.nodes.prepare()

    def _munge(self) -> None:
        secret = self.paths.secrets
        must(
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
            self.nodes.forget(pid)
        for name in ended:
            del self.daemons[name]
        return tuple(ended)
