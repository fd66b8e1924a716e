"""Notebook servers in jobs: where they listen, whether they answer, and their tokens."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, ConfigError, JobLostError, UsageError
from toolkit.files import read_json, read_text
from toolkit.model.base import Model
from toolkit.runs import forward, status
from toolkit.runs.directories import all_runs
from toolkit.runs.run import Run
from toolkit.slurm.client import without_job

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


def server(run: Run, *, by_ssh: bool = False) -> forward.Door:
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
        forward.require_running(run)
        raise JobLostError(
            f"the server of {run.name} does not listen yet",
            place="RUN",
            next_step=f"try again in a minute; its messages: toolkit logs {run.word}",
        ) from error
    door = forward.locate(run, place.socket, node=place.node, by_ssh=by_ssh)
    return door._replace(token=token)


def prove(door: forward.Door) -> None:
    """Check that the server answers to its token, and not without.

    The token goes through a pipe: no list of processes shows it.

    Raises:
        CommandFailedError: it does not.
    """
    command = ("python3", "-I", "-c", _PROBE, door.target, str(_ANSWER_SECONDS))
    result = shell.run(
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
