"""`toolkit shell`, and other runs that the user waits for: `toolkit run --interactive`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from toolkit.api.run import write
from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.options import flags, job_options
from toolkit.cli.shared import INTERRUPTED, with_image
from toolkit.cli.shell_forward import Wanted, beside, forward_options, wanted
from toolkit.errors import SlurmUnreachableError, ToolkitError, UsageError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.relay.child import Child
from toolkit.runs import interactive
from toolkit.runs.store import Paths
from toolkit.slurm.client import Client


@click.command("shell", context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the script that would be run, and with which command, and stop.",
)
@forward_options
@click.argument("program", default="bash", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@cluster_option()
def command(
    program: str,
    arguments: tuple[str, ...],
    dry_run: bool,
    forwards: tuple[str, ...],
    by_ssh: bool,
    **options: Any,
) -> int:
    """Open a shell in an image, on a node of the cluster.

    It is a job of its own, and its exit code is the shell's.

    The terminal is that of the node: its size follows yours, and Ctrl-C goes to the program in the
    shell. PROGRAM (default: bash) is started with its arguments. With several nodes, the shell is
    on the first; the job has all of them, and ends with the shell.

    With --forward, a server that you start in the shell, on PORT of the node's loopback address or
    on SOCKET, is reached from your own machine while the shell is open, as by toolkit forward. How
    is printed before the prompt.

    \b
    Examples:
      toolkit shell --image pytorch_cpu
      toolkit shell --image pytorch_22.03 --gpus-per-node 4 --time 2:00:00
      toolkit shell --image pytorch_cpu --forward 6006
      toolkit shell --image pytorch_cpu --cpus-per-task 4 -- python3 -i train.py
    """
    from toolkit.api.run import gather_run

    given = {
        **options,
        "launcher": options.get("launcher") or "shell",
        "interactive": True,
        "pty": True,
    }
    if given["launcher"] != "shell":
        raise UsageError(
            "a shell has no ranks to launch",
            place="--launcher",
            next_step="toolkit run --interactive starts ranks",
        )
    given["job_name"] = options.get("job_name") or "shell"
    servers = wanted(forwards, by_ssh=by_ssh)
    layer, cwd = flags(given, arguments), Path.cwd()
    case = gather_run(program, layer, cwd, dry_run=dry_run)
    if dry_run:
        from toolkit import scripts
        from toolkit.planning.plan import decide

        console.document(scripts.script(decide(case)))
        return 0
    case = with_image(case, lambda: gather_run(program, layer, cwd))
    return run_interactively(case, servers=servers)


def run_interactively(case: Case, *, servers: Wanted | None = None, as_json: bool = False) -> int:
    """Get an allocation, run the script in it, and give it back; returns the run's exit code.

    Args:
        case: the run.
        servers: those that are reached from outside meanwhile.
        as_json: the outcome is printed for programs.

    Raises:
        UsageError: a terminal is needed, and there is none.
        SubmissionError: there was no allocation.
    """
    if case.job.pty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "this needs a terminal; standard input or output is not one",
            place="--pty",
            next_step="type it in a terminal; in scripts: toolkit run",
        )
    paths, decided = write(case)
    console.say("plan", console.plan_summary(decided))
    with contextlib.ExitStack() as stack:
        try:
            relay = stack.enter_context(beside(paths, servers or Wanted()))
        except ToolkitError:  # nothing was started
            shutil.rmtree(paths.directory)
            raise
        return _run(case, paths, decided, relay, as_json=as_json)


def _run(case: Case, paths: Paths, decided: Plan, relay: Child, *, as_json: bool) -> int:
    """Run the script in an allocation that lives as long as this process."""
    cluster = local_name(case.site)
    process, attempt = interactive.start(case.client, paths, decided, cluster)
    try:
        with interactive.released_after(case.client, process, paths, pty=decided.pty):
            submission = interactive.granted(process, paths, attempt)
            console.say("script", os.path.relpath(paths.script))
            if decided.pty:
                code = process.wait()
                relay.end()
                came_out = interactive.finish(case.client, paths, decided, code)
                why = came_out.message if came_out.kind not in ("ok", "failed") else ""
                console.say(
                    "ended",
                    f"exit {came_out.exit_code}  {why}".rstrip() + "; the nodes are free again",
                )
                return came_out.exit_code
            from toolkit.cli.follow import show

            return show(case.client, paths, decided, submission.job_id, as_json=as_json)
    except KeyboardInterrupt:
        relay.end()
        console.note("")
        return _cancelled(case.client, paths, decided)


def _cancelled(client: Client, paths: Paths, decided: Plan) -> int:
    """Report what became of a run that was interrupted, and write down how it came out."""
    if not paths.allocation.is_file():
        shutil.rmtree(paths.directory)
        console.say("cancelled", "the request for nodes; nothing was started")
        return INTERRUPTED
    try:
        if paths.submission.is_file():
            interactive.finish(client, paths, decided, INTERRUPTED)
        console.say("cancelled", f"{paths.name}; the nodes are free again")
    except SlurmUnreachableError as error:
        console.say(
            "cancelled",
            f"{paths.name}; {error.cause}: the nodes are free as soon as it does (toolkit ps)",
        )
    return INTERRUPTED
