"""The server of a notebook: JupyterLab on a node, as its run describes it."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ConfigError, JobLostError, UsageError
from toolkit.files import read_json, read_text
from toolkit.model.base import Model
from toolkit.runs import forward, ssh, status
from toolkit.runs.directories import all_runs
from toolkit.runs.run import Run

LAUNCHER = "notebook"
PLACE = "place.json"  # of the server, which writes it once it listens


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


def server(run: Run) -> forward.Server:
    """Return the server of a notebook, and its token.

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
        ssh.require_running(run)
        raise JobLostError(
            f"the server of {run.name} does not listen yet",
            place="RUN",
            next_step=f"try again in a minute; its messages: toolkit logs {run.word}",
        ) from error
    return forward.locate(run, place.socket, node=place.node)._replace(token=token)
