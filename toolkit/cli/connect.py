"""`toolkit shell`, `notebook` and `forward`: runs that the user waits for, and servers in jobs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from toolkit import scripts
from toolkit.api.run import write
from toolkit.cli import console
from toolkit.cli.follow import leave_results, show, show_end, show_outcome, watch
from toolkit.cli.options import flags, job_options, job_options_except
from toolkit.cli.shared import (
    FIRST_PORT,
    INTERRUPTED,
    cluster_option,
    complete_runs,
    json_option,
    options,
    pattern,
    run_argument,
    runs_option,
    with_image,
)
from toolkit.errors import SlurmUnreachableError, UsageError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.job import JOINED
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.rules.files import unseen
from toolkit.runs import ssh
from toolkit.runs.removal import cancel
from toolkit.runs.run import Run, find
from toolkit.runs.submit import finish_salloc, released_after, start_salloc, submit, wait_for_nodes
from toolkit.shell import interrupted_by_signals
from toolkit.slurm.client import PATIENCE, Wait, patiently

_UNITS = {"": 60, "s": 1, "m": 60, "h": 3600}
IDLE = pattern(
    "a time without use",
    r"([1-9]\d{0,5})([smh]?)",
    "30m, or 2h",
    lambda match: int(match[1]) * _UNITS[match[2]],
)


# A shell is one job that runs once.
_NOT_OF_SHELLS = ("launcher", "array", "sweep", "requeue", "max_requeues", "retry")


@click.command("shell", context_settings={"allow_interspersed_args": False})
@job_options_except(*_NOT_OF_SHELLS)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the script that would be run, and with which command, and stop.",
)
@click.argument("program", default="bash", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@cluster_option
def shell(
    program: str,
    arguments: tuple[str, ...],
    dry_run: bool,
    **options: Any,
) -> int:
    """Open a shell in an image, on a node of the cluster.

    It is a job of its own, and its exit code is the shell's.

    The terminal is that of the node: its size follows yours, and Ctrl-C goes to the program in the
    shell. PROGRAM (default: bash) is started with its arguments. With several nodes, the shell is
    on the first; the job has all of them, and ends with the shell.

    A server that you start in the shell is reached from another terminal, by `toolkit forward`.

    \b
    Examples:
      toolkit shell --image pytorch_cpu
      toolkit shell --image pytorch_22.03 --gpus-per-node 4 --time 2:00:00
      toolkit shell --image pytorch_cpu --cpus-per-task 4 -- python3 -i train.py
    """
    name = options.get("job_name") or "shell"
    given = {**options, "launcher": "shell", "interactive": True, "pty": True, "job_name": name}
    layer, cwd = flags(given, arguments), Path.cwd()
    case = gather(program, layer, cwd, dry_run=dry_run)
    if dry_run:
        console.document(scripts.script(decide(case)))
        return 0
    return run_interactively(with_image(case, lambda: gather(program, layer, cwd)))


def run_interactively(case: Case, *, detach: bool = False, as_json: bool = False) -> int:
    """Get an allocation, run the script in it, and give it back; returns the run's exit code.

    Args:
        case: the run.
        detach: it was asked not to wait for it.
        as_json: the outcome is printed for programs.

    Raises:
        UsageError: a terminal is needed, and there is none; or it cannot be waited for.
        SubmissionError: there was no allocation.
    """
    if detach:
        raise UsageError(
            "an interactive run cannot be detached",
            place="--detach",
            next_step="leave out --detach or --interactive",
        )
    if case.job.pty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "this needs a terminal; standard input or output is not one",
            place="--pty",
            next_step="type it in a terminal; in scripts: toolkit run",
        )
    run = write(case)
    console.announce(run.plan)
    process = start_salloc(run, local_name(case.site))
    try:
        with released_after(run, process):
            wait_for_nodes(run, process)
            console.say("script", os.path.relpath(run.script))
            if not run.plan.pty:
                return show(run, as_json=as_json)
            outcome = finish_salloc(run, process.wait())
            console.say("ended", f"exit {outcome.exit_code}  {outcome.message}".rstrip())
            return outcome.exit_code
    except KeyboardInterrupt:
        console.note("")
        console.say("cancelled", _cancelled(run))
        return INTERRUPTED


def _cancelled(run: Run) -> str:
    """Return what became of a run that was interrupted, and write down how it came out."""
    if not (run.directory / "allocation").is_file():
        shutil.rmtree(run.directory)
        return "the request for nodes; nothing was started"
    try:
        if run.number:
            finish_salloc(run, INTERRUPTED)
    except SlurmUnreachableError as error:
        return f"{run.name}; {error.cause}: its nodes are free as soon as it does (toolkit ps)"
    return f"{run.name}; its nodes were given back"


entrance_options: Callable[[Callable[..., int]], Callable[..., int]] = options(
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        help="Port on your own machine, in the address that is printed.",
    ),
    click.option(
        "--socket",
        "socket_path",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="Socket on this host (default: one in $TMPDIR/toolkit-UID or /tmp/toolkit-UID).",
    ),
)


@click.command("forward")
@click.argument("run", shell_complete=complete_runs)
@click.argument("target", metavar="PORT-or-SOCKET")
@click.option("--node", help="Node of the job with the server (default: the first).")
@entrance_options
@json_option
@runs_option
@cluster_option
def forward_server(
    run: str,
    target: str,
    node: str | None,
    port: int | None,
    socket_path: Path | None,
    as_json: bool,
    runs: Path,
) -> int:
    """Reach a server in a running job, such as TensorBoard.

    It is `ssh -N -L` through the job itself, and needs no port on the network. The server
    (TensorBoard, a dashboard, a debugger) is your own, and listens on PORT of the node's loopback
    address, or on SOCKET, an absolute path on the node. Connections arrive at a socket of this host
    that only you can open. The command ends with the job, or by Ctrl-C, and connects again if the
    connection is lost.

    \b
    Examples:
      toolkit forward train-0007 6006
      toolkit forward train-0007 /tmp/debug.sock --port 5678
      toolkit forward train-0007 8265 --node nid002
    """
    door = ssh.locate(find(run, runs), target, node=node)
    own = int(door.target) if door.target.isdigit() else FIRST_PORT
    return carry(door, _entrance(door, socket_path), port or own, as_json=as_json)


def _entrance(door: ssh.Door, path: Path | None) -> ssh.Entrance:
    return ssh.Entrance((path or ssh.socket_path(door)).absolute())


def carry(
    door: ssh.Door,
    entrance: ssh.Entrance,
    port: int,
    path: str = "/",
    *,
    as_json: bool = False,
) -> int:
    """Print how to connect, carry connections until the job ends, and return the exit code.

    Args:
        door: to a server on a node.
        entrance: the place at which connections arrive.
        port: of the user's own machine.
        path: of the address in a browser.
        as_json: print the way in for programs.
    """
    run, is_shown = door.run, False
    entrance.require_free()
    try:
        with interrupted_by_signals():
            for subject, text in ssh.carry(door, entrance):
                if subject == "connected" and not is_shown:
                    is_shown = True
                    _show_way_in(door, entrance, port, path, as_json=as_json)
                else:
                    console.say(subject, text)
    except KeyboardInterrupt:
        console.note("")
        console.say("closed", f"the connections; {run.name} keeps running")
        return INTERRUPTED
    return 0


def _show_way_in(
    door: ssh.Door, entrance: ssh.Entrance, port: int, path: str, *, as_json: bool
) -> None:
    arrival = os.environ.get("TOOLKIT_HOP", "")  # where connections arrive on a laptop (--on)
    own = arrival if arrival.startswith("/") else ""
    data = {
        "run": door.run.name,
        "node": door.node,
        "ssh": "" if arrival else ssh.ssh_command(port, entrance.path),
        "socket": own,
        "address": f"http://{'localhost' if own else arrival or f'localhost:{port}'}{path}",
    }
    lines = [
        console.subject(name, data[name]) for name in ("ssh", "socket", "address") if data[name]
    ]
    console.result(data, "\n".join(lines), as_json=as_json)
    if arrival and not own and path == "/":  # no token
        console.say("", "all users of your machine can connect there; --socket PATH: only you")
    where = "" if arrival else "both on your own machine; "
    console.say("", f"{where}Ctrl-C here ends the connections, not the job")


@click.command("start")
@job_options
@click.option(
    "--idle",
    metavar="TIME",
    type=IDLE,
    help="Stop kernels that are unused for so long (30m, 2h), and then the server.",
)
@entrance_options
@json_option
@click.argument(
    "directory",
    metavar="[DIR]",
    default=".",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
)
@cluster_option
def notebook_start(
    directory: Path,
    idle: int | None,
    port: int | None,
    socket_path: Path | None,
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
    is_exercise = (directory.parent / JOINED).is_file()  # of a workshop
    name = options["job_name"] or (directory.name if is_exercise else "notebook")
    example = f"{name}-0000-000000-jupyter.sock"
    place = socket_path or ssh.private_directory() / example
    ssh.Entrance(place.absolute()).require_free()  # before the job queues
    given = {**options, "launcher": ssh.LAUNCHER, "job_name": name}
    layer = flags(given, (str(idle or 0), str(directory)))
    wait = Wait(PATIENCE, partial(console.say, "waiting"))
    gather_case = partial(patiently, partial(_gather_notebook, layer, directory), wait)
    case = with_image(gather_case(), gather_case)
    run = write(case)
    console.announce(run.plan)
    try:
        submit(run, local_name(case.site), wait)
    except KeyboardInterrupt:
        console.say("interrupted", f"Slurm may have the job of {run.name} already: toolkit ps")
        raise
    try:
        console.say("", f"the messages of JupyterLab: toolkit logs {run.word}")
        outcome = watch(run, until=(run.directory / ssh.PLACE).is_file)
        if outcome is not None:
            show_end(run, outcome, as_json=False)
            return outcome.exit_code or 1
        return _connect(run, port, socket_path, as_json=as_json)
    except KeyboardInterrupt:
        console.note("")
        console.say("detached", f"job {run.job_id} goes on; {_next_steps(run)}")
        return INTERRUPTED


def _gather_notebook(layer: Layer, directory: Path) -> Case:
    case = gather("jupyter", layer, Path.cwd())
    return case._replace(
        target=case.target._replace(folder=str(directory)),
        host=(*case.host, *unseen(case, "DIR", str(directory))),
    )


def _connect(run: Run, port: int | None, socket_path: Path | None, *, as_json: bool) -> int:
    door = ssh.server(run)
    path = f"/lab?token={door.token}"
    code = carry(door, _entrance(door, socket_path), port or FIRST_PORT, path, as_json=as_json)
    if code == INTERRUPTED:
        console.say("next", _next_steps(run))
    elif (outcome := watch(run)) is not None:
        show_outcome(outcome, run)
        leave_results(run)
    return code


def _next_steps(run: Run) -> str:
    return f"toolkit notebook connect {run.word}; end it: toolkit notebook stop {run.word}"


@click.command("connect")
@run_argument
@entrance_options
@json_option
@runs_option
@cluster_option
def notebook_connect(
    run: str | None,
    port: int | None,
    socket_path: Path | None,
    as_json: bool,
    runs: Path,
) -> int:
    """Connect to a notebook again (default: the newest that runs).

    \b
    Examples:
      toolkit notebook connect
      toolkit notebook connect notebook-0002 --port 9999
    """
    return _connect(_find_notebook(run, runs), port, socket_path, as_json=as_json)


@click.command("stop")
@run_argument
@runs_option
@cluster_option
def notebook_stop(run: str | None, runs: Path) -> None:
    """End a notebook and its job (default: the newest that runs).

    \b
    Examples:
      toolkit notebook stop
      toolkit notebook stop notebook-0002
    """
    stopped = _find_notebook(run, runs)
    ssh.require_notebook(stopped)
    if cancel(stopped):
        console.fact("stopped", f"{stopped.name}, job {stopped.job_id}")
    else:
        console.fact("ended", f"{stopped.name} has ended already")


def _find_notebook(run: str | None, runs: Path) -> Run:
    newest = ssh.newest(runs) if run is None else None
    return newest or find(run, runs)
