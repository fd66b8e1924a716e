"""Reach a server that listens on a node of a running job."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import JobLostError, SlurmUnreachableError, UsageError
from toolkit.model.run import JobState
from toolkit.quoting import shell, shell_words
from toolkit.relay import gate, sockets
from toolkit.runs import status
from toolkit.runs.run import Run
from toolkit.slurm.hostlist import expand

_LONGEST_NAME = 24  # of a server in the name of its socket, whose path has a limit, too


class Door(NamedTuple):
    """The way to a server on a node of a run.

    Attributes:
        run: that has the server.
        job_id: of the job, or of an element of its array.
        node: that the server is on.
        target: the server: a port, or the path of a Unix socket.
        by_ssh: the node is reached by ssh.
        token: of the server of a notebook.
    """

    run: Run
    job_id: int
    node: str
    target: str
    by_ssh: bool = False
    token: str = ""

    def transport(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command that runs another on the node, with its input and output here."""
        prefix = self.run.client.access.prefix
        if self.by_ssh:
            quiet = ("-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15")
            return (*prefix, "ssh", *quiet, self.node, shell_words(command))
        # --unbuffered: else srun waits for the ends of lines. --mpi=none: a site's default may be a
        # plugin that listens on the network.
        shape = ("--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=1")
        which = (f"--jobid={self.job_id}", f"--nodelist={self.node}", "--job-name=toolkit-relay")
        return (*prefix, "srun", *which, *shape, "--unbuffered", "--mpi=none", *command)

    def is_running(self) -> bool:
        """Return whether the job runs on the node; a Slurm that does not answer does not end it."""
        try:
            states = status.running(self.run)
            own = [state for state in states if state.job_id == self.job_id]
            return any(self.node in expand(state.nodes) for state in own)
        except SlurmUnreachableError:
            return True


def target(text: str) -> str:
    """Return a valid PORT or SOCKET.

    Raises:
        UsageError: it is neither.
    """
    if text.startswith("/"):
        sockets.require_short(
            Path(text), "PORT-or-SOCKET", "a server on a shorter path, or on a port"
        )
        return text
    if text.isascii() and text.isdecimal() and 0 < int(text) < 65536:
        return str(int(text))
    raise UsageError(
        f"{text!r} is neither a port nor the absolute path of a socket",
        place="PORT-or-SOCKET",
        next_step="a port, such as 6006, or a path, such as /tmp/server.sock",
    )


def require_running(run: Run) -> list[JobState]:
    """Return the running job of a run, or the running elements of its job array.

    Raises:
        JobLostError: the run is not running.
    """
    states = status.running(run)
    if not states:
        raise JobLostError(
            f"{run.name} is not running",
            place="RUN",
            next_step=f"toolkit ps; toolkit logs {run.word}",
        )
    return states


def locate(run: Run, where: str, *, node: str | None = None, by_ssh: bool = False) -> Door:
    """Return the way to a server on a node of a run, by default the first.

    Raises:
        JobLostError: the run is not running.
        UsageError: it has no such node.
        ForbiddenError: it is another user's, who may have written the number of any job.
        UntrustedError: another user could exchange it.
    """
    run.require_own()
    states = require_running(run)
    nodes = [(name, state.job_id) for state in states for name in expand(state.nodes)]
    chosen = node or nodes[0][0]
    job_ids = dict(reversed(nodes))  # of two elements of an array on one node, the first
    if chosen not in job_ids:
        raise UsageError(
            f"{run.name} does not run on {chosen}", place="--node", choices=job_ids, value=chosen
        )
    return Door(run, job_ids[chosen], chosen, target(where), by_ssh)


def socket_path(run: Run, where: str, node: str = "") -> Path:
    """Return the default path of the socket on this host.

    An example is ``/tmp/toolkit-1000/train-0007-5f3a9c-6006``. Runs of several directories have the
    same name, several nodes the same port, and several servers the same name of a socket, so part
    of a hash of all of them is in it.
    """
    words = (os.fsencode(run.directory.resolve()), os.fsencode(node), os.fsencode(where))
    own = hashlib.sha256(b"\0".join(words)).hexdigest()[:6]
    server = re.sub(r"[^A-Za-z0-9._-]", "-", Path(where).name)[-_LONGEST_NAME:]  # ssh splits at ":"
    return sockets.private_directory() / f"{run.name}-{own}-{server}"


def open_door(door: Door, listener: socket.socket) -> Iterator[gate.Event]:
    """Carry connections to a server until the job ends; see ``gate.carry``."""
    route = gate.Route(
        door.transport,
        [door.target],
        door.is_running,
        outlives_job=door.by_ssh,
        packs=not door.by_ssh,
    )
    return gate.carry([listener], route)


def ssh_command(port: int, path: Path) -> str:
    """Return the command for the user's own machine that connects a port of it to a socket.

    The socket is on this host only, and the name of a cluster may lead to several. Without a
    connection of ssh, whose end this host was, it is the host's own name.
    """
    name, fields = socket.getfqdn(), os.environ.get("SSH_CONNECTION", "").split()
    host, own_port = socket.gethostname() if name.startswith("localhost") else name, "22"
    if len(fields) == 4:
        host, own_port = fields[2:]
    option = f"-p {shell(own_port)} " if own_port != "22" else ""
    return f"ssh -N {option}-L {port}:{shell(path)} {shell(getpass.getuser())}@{shell(host)}"
