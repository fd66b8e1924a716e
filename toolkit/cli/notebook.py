"""`toolkit notebook`: JupyterLab in an image, on a node."""

from __future__ import annotations

import contextlib
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from toolkit.api.run import write
from toolkit.cli import console
from toolkit.cli.follow import leave_results, show_explanation, show_outcome, show_state
from toolkit.cli.forward import FIRST_PORT, Entrance, carry, entrance_options, require_free
from toolkit.cli.lazy import cluster_option
from toolkit.cli.options import flags, job_options
from toolkit.cli.shared import INTERRUPTED, json_option, run_argument, runs_option, with_image
from toolkit.errors import SlurmUnreachableError, UsageError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.job import JOINED
from toolkit.model.run import Outcome
from toolkit.planning import case as planning
from toolkit.planning.settings import Layer
from toolkit.rules.files import unseen
from toolkit.runs import follow, forward
from toolkit.runs.directories import find
from toolkit.runs.removal import cancel
from toolkit.runs.run import Run
from toolkit.runs.submit import submit
from toolkit.slurm.failures import Wait, configured_wait, patiently
from toolkit.units import human_time

_END_SECONDS = 60.0  # for Slurm to say how a job ended
_UNITS = {"": 60, "s": 1, "m": 60, "h": 3600}
_IDLE = re.compile(r"([0-9]{1,6})([smh]?)\Z")


@click.command("start")
@job_options
@click.option(
    "--idle",
    metavar="TIME",
    help="Stop kernels that are unused for so long (30m, 2h), and then the server.",
)
@entrance_options
@json_option
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@cluster_option()
def start(
    directory: Path,
    idle: str | None,
    port: int | None,
    socket_path: Path | None,
    listen: int | None,
    by_ssh: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Start JupyterLab in an image on a node, and connect to it.

    DIR is the directory that it shows. This command need not be named. Ctrl-C closes the
    way in and leaves the job running.

    \b
    Examples:
      toolkit notebook --image mine --time 2:00:00
      toolkit notebook start --image mine --gpus-per-node 1 --idle 30m course/
    """
    shown = _require_directory(directory)
    name = options["job_name"] or _job_name(shown)
    entrance = Entrance(port or listen or FIRST_PORT, socket_path, listen)
    require_free(entrance, f"{name}-0000-000000-jupyter.sock")
    given = {**options, "launcher": forward.LAUNCHER, "job_name": name}
    layer = flags(given, (str(idle_seconds(idle)), str(shown)))
    wait = configured_wait(partial(console.say, "waiting"))
    gather = partial(patiently, partial(_gather, layer, shown), wait)
    case = with_image(gather(), gather)
    run = _submit(case, shown, wait)
    try:
        code = _await(run)
        if code is not None:
            return code
        return _connect(run, entrance, by_ssh=by_ssh, as_json=as_json)
    except KeyboardInterrupt:
        console.note("")
        console.say("detached", f"job {run.job_id} goes on; {_next_steps(run)}")
        return INTERRUPTED


def _gather(layer: Layer, directory: Path) -> Case:
    """Gather the case of a notebook that shows a directory, which its container sees."""
    case = planning.gather("jupyter", layer, Path.cwd())
    return case._replace(
        target=case.target._replace(folder=str(directory)),
        host=(*case.host, *unseen(case, "DIR", str(directory))),
    )


def _job_name(shown: Path) -> str:
    """Return the name of the job: that of the exercise if the directory is one of a workshop."""
    return shown.name if (shown.parent / JOINED).is_file() else "notebook"


def _require_directory(directory: Path) -> Path:
    """Return the path of a directory that the server can show, without symbolic links."""
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}", place="DIR", next_step="mkdir it")
    if not os.access(directory, os.R_OK | os.X_OK):
        step = "a directory that you may list and enter"
        raise UsageError(f"you may not read {directory}", place="DIR", next_step=step)
    return directory.resolve()


def idle_seconds(text: str | None) -> int:
    """Return the seconds of ``30m``, ``2h``, ``90s`` or ``30`` (minutes); 0 if there is none.

    Raises:
        UsageError: it is none of these.
    """
    if text is None:
        return 0
    match = _IDLE.match(text)
    if match is None or not int(match[1]):
        raise UsageError(
            f"{text!r} is no time without use",
            place="--idle",
            next_step="--idle 30m, or 2h",
        )
    return int(match[1]) * _UNITS[match[2]]


def _submit(case: Case, shown: Path, wait: Wait) -> Run:
    others = forward.others(Path(case.run).parent, shown)
    run = write(case)
    console.say("plan", console.plan_summary(run.plan))
    for name in others:
        console.say("note", f"{name} shows this directory already: toolkit notebook connect {name}")
    console.warn(run.plan)
    try:
        submit(run, local_name(case.site), wait)
    except KeyboardInterrupt:
        console.say("interrupted", f"Slurm may have the job of {run.name} already: toolkit ps")
        raise
    return run


def _await(run: Run) -> int | None:
    """Wait until the server listens; return the exit code if the job ends instead."""
    began = time.monotonic()
    for event in follow.follow(run):
        if isinstance(event, follow.Changed):
            show_state(event, time.monotonic() - began)
            if event.state.state == "RUNNING":
                console.say("", f"JupyterLab starts; its messages: toolkit logs {run.word}")
        elif isinstance(event, Outcome):
            show_outcome(event, run)
            show_explanation(run)
            return event.exit_code or 1
        if (run.directory / forward.PLACE).is_file():
            return None
    raise AssertionError("a run that is followed ends with an outcome")


def _connect(run: Run, entrance: Entrance, *, by_ssh: bool, as_json: bool) -> int:
    """Prove that the server answers, and carry connections to it until the job ends."""
    door = forward.server(run, by_ssh=by_ssh)
    forward.prove(door)
    code = carry(door, entrance, f"/lab?token={door.token}", as_json=as_json)
    if code == INTERRUPTED:
        console.say("next", _next_steps(run))
    else:
        _show_end(run)
    return code


def _show_end(run: Run) -> None:
    """Print how the job ended, if Slurm knows it within a minute."""
    with contextlib.suppress(TimeoutError, SlurmUnreachableError):
        for event in follow.follow(run, until=time.monotonic() + _END_SECONDS):
            if isinstance(event, Outcome):
                word = "done" if event.kind == "ok" else event.kind
                console.say(word, f"{human_time(event.seconds)}  {event.message}".rstrip())
                leave_results(run)
    console.say("", f"its messages: toolkit logs {run.word}; again: toolkit notebook")


def _next_steps(run: Run) -> str:
    return f"toolkit notebook connect {run.word}; end it: toolkit notebook stop {run.word}"


@click.command("connect")
@run_argument
@entrance_options
@json_option
@runs_option
@cluster_option()
def connect(
    run: str | None,
    port: int | None,
    socket_path: Path | None,
    listen: int | None,
    by_ssh: bool,
    as_json: bool,
    runs: Path,
) -> int:
    """Connect to a notebook again (default: the newest that runs).

    \b
    Examples:
      toolkit notebook connect
      toolkit notebook connect notebook-0002 --port 9999
    """
    entrance = Entrance(port or listen or FIRST_PORT, socket_path, listen)
    return _connect(_find(run, runs), entrance, by_ssh=by_ssh, as_json=as_json)


@click.command("stop")
@run_argument
@runs_option
@cluster_option()
def stop(run: str | None, runs: Path) -> None:
    """End a notebook and its job (default: the newest that runs).

    \b
    Examples:
      toolkit notebook stop
      toolkit notebook stop notebook-0002
    """
    stopped = _find(run, runs)
    forward.require_notebook(stopped)
    if cancel(stopped):
        console.fact("stopped", f"{stopped.name}, job {stopped.job_id}")
    else:
        console.fact("ended", f"{stopped.name} has ended already")


def _find(run: str | None, runs: Path) -> Run:
    """Return a run by its name, or the newest notebook that has not ended."""
    newest = forward.newest(runs) if run is None else None
    return newest or find(run, runs)
