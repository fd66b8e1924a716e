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
from toolkit.relay.child import Child
from toolkit.runs import interactive
from toolkit.runs.run import Run


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
    from toolkit.planning.case import gather

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
    case = gather(program, layer, cwd, dry_run=dry_run)
    if dry_run:
        from toolkit import scripts
        from toolkit.planning.plan import decide

        console.document(scripts.script(decide(case)))
        return 0
    case = with_image(case, lambda: gather(program, layer, cwd))
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
    run = write(case)
    console.say("plan", console.plan_summary(run.plan))
    console.warn(run.plan)
    with contextlib.ExitStack() as stack:
        try:
            relay = stack.enter_context(beside(run, servers or Wanted()))
        except ToolkitError:  # nothing was started
            shutil.rmtree(run.directory)
            raise
        return _follow(run, local_name(case.site), relay, as_json=as_json)


def _follow(run: Run, cluster: str | None, relay: Child, *, as_json: bool) -> int:
    """Run the script in an allocation that lives as long as this process."""
    process = interactive.start(run, cluster)
    try:
        with interactive.released_after(run, process):
            interactive.wait_for_nodes(run, process)
            console.say("script", os.path.relpath(run.script))
            if not run.plan.pty:
                from toolkit.cli.follow import show

                return show(run, as_json=as_json)
            code = process.wait()
            relay.end()
            outcome = interactive.finish(run, code)
            why = outcome.message if outcome.kind not in ("ok", "failed") else ""
            text = f"exit {outcome.exit_code}  {why}".rstrip()
            console.say("ended", f"{text}; the nodes are free again")
            return outcome.exit_code
    except KeyboardInterrupt:
        relay.end()
        console.note("")
        return _cancelled(run)


def _cancelled(run: Run) -> int:
    """Report what became of a run that was interrupted, and write down how it came out."""
    if interactive.allocated(run) is None:
        shutil.rmtree(run.directory)
        console.say("cancelled", "the request for nodes; nothing was started")
        return INTERRUPTED
    try:
        if run.job is not None and run.job.job_id is not None:
            interactive.finish(run, INTERRUPTED)
        console.say("cancelled", f"{run.name}; the nodes are free again")
    except SlurmUnreachableError as error:
        wait = f"{error.cause}: the nodes are free as soon as it does (toolkit ps)"
        console.say("cancelled", f"{run.name}; {wait}")
    return INTERRUPTED
