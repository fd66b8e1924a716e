"""Reach a server that listens on a node of a running job, such as that of a notebook."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import (
    CommandFailedError,
    ConfigError,
    JobLostError,
    SlurmUnreachableError,
    UsageError,
)
from toolkit.files import read_json, read_text
from toolkit.model.base import Model
from toolkit.model.run import JobState
from toolkit.quoting import shell, shell_words
from toolkit.relay import gate, sockets
from toolkit.runs import status
from toolkit.runs.directories import all_runs
from toolkit.runs.run import Run
from toolkit.shell import run as run_command
from toolkit.slurm.client import without_job
from toolkit.slurm.hostlist import expand

LAUNCHER = "notebook"
PLACE = "place.json"  # of the server, which writes it once it listens
_ANSWER_SECONDS = 30  # for a server to answer
# Asks the server on the node without a token and with that of standard input. No token goes to a
# server of another user, who may have taken the place of one that was killed.
_PROBE = r"""
import os, socket, struct, sys, time
path, until = sys.argv[1], time.time() + float(sys.argv[2])
tokens = sys.stdin.read().split("\n")
def answer(token):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
        if struct.unpack("=iII", peer)[1] != os.geteuid():
            raise PermissionError("it belongs to another user")
        header = "Authorization: token %s\r\n" % token if token else ""
        sock.sendall(("GET /api/status HTTP/1.0\r\nHost: localhost\r\n%s\r\n" % header).encode())
        return (sock.recv(64).split() + [b"", b""])[1].decode()
while True:
    try:
        answers = [answer(token) for token in tokens]
    except PermissionError as error:
        answers, until = [str(error)], 0
    except OSError as error:
        answers = [str(error)]
    if answers == ["403", "200"] or time.time() > until:
        break
    time.sleep(0.2)
print(" ".join(answers))
"""
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


class Place(Model, frozen=True, kw_only=True):
    """The place at which a server listens; it writes this itself, once it does."""

    node: str
    socket: str


def is_notebook(run: Run) -> bool:
    """Return whether a run is a notebook."""
    try:
        return run.plan.launch.launcher == LAUNCHER
    except (ConfigError, OSError):
        return False


def newest(runs: Path) -> Run | None:
    """Return the newest notebook that has not ended as far as is known, else the newest of all."""
    ordered = sorted(all_runs(runs), key=lambda run: run.has_ended)
    return next(filter(is_notebook, ordered), None)


def require_notebook(run: Run) -> None:
    """Raise UsageError if a run is not a notebook."""
    if not is_notebook(run):
        raise UsageError(
            f"{run.name} is not a notebook",
            place="RUN",
            next_step=f"toolkit ps; another server: toolkit forward {run.word} PORT",
        )


def others(runs: Path, directory: Path) -> list[str]:
    """Return the notebooks that show a directory and have not ended, the newest first."""
    own = [run for run in all_runs(runs) if not run.has_ended and is_notebook(run)]
    rows = status.rows([run for run in own if run.plan.launch.program[-1] == str(directory)])
    return [row.run for row in rows if row.state in ("PENDING", "RUNNING")]


def server(run: Run, *, by_ssh: bool = False) -> Door:
    """Return the way to the server of a run, and its token.

    Raises:
        UsageError: the run is not a notebook.
        JobLostError: it is not running, or its server does not listen yet.
        ForbiddenError: the run is another user's.
        UntrustedError: another user could exchange it.
    """
    run.require_own()  # it says which server gets the token
    require_notebook(run)
    try:
        place = read_json(run.directory / PLACE, Place, below=run.directory)
        token = read_text(run.directory / "token", below=run.directory).strip()
    except (ConfigError, OSError) as error:
        require_running(run)
        raise JobLostError(
            f"the server of {run.name} does not listen yet",
            place="RUN",
            next_step=f"try again in a minute; its messages: toolkit logs {run.word}",
        ) from error
    door = locate(run, place.socket, node=place.node, by_ssh=by_ssh)
    return door._replace(token=token)


def prove(door: Door) -> None:
    """Check that the server answers to its token, and not without.

    The token goes through a pipe: no list of processes shows it.

    Raises:
        CommandFailedError: it does not.
    """
    command = ("python3", "-I", "-c", _PROBE, door.target, str(_ANSWER_SECONDS))
    result = run_command(
        door.transport(command),
        input=f"\n{door.token}",
        env=without_job(os.environ),
        check=False,
        timeout=120,
    )
    if result.stdout.split()[-2:] != ["403", "200"]:  # a site's prolog may print before it
        raise CommandFailedError(
            f"the notebook's server on {door.node} does not answer as it should",
            place=door.run.name,
            details=(*result.stdout.splitlines(), *result.tail(3)),
            next_step=f"toolkit logs {door.run.word}; its job goes on: "
            f"toolkit notebook stop {door.run.word} ends it",
        )
