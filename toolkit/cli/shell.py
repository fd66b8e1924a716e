"""`toolkit shell`, and other runs that the user waits for: `toolkit run --interactive`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from toolkit import scripts
from toolkit.api.run import write
from toolkit.cli import console
from toolkit.cli.follow import show
from toolkit.cli.lazy import cluster_option
from toolkit.cli.options import flags, job_options
from toolkit.cli.shared import INTERRUPTED, with_image
from toolkit.errors import SlurmUnreachableError, UsageError
from toolkit.localcluster.access import local_name
from toolkit.model.case import Case
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.runs import interactive
from toolkit.runs.run import Run


@click.command("shell", context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the script that would be run, and with which command, and stop.",
)
@click.argument("program", default="bash", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@cluster_option()
def command(
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
    layer, cwd = flags(given, arguments), Path.cwd()
    case = gather(program, layer, cwd, dry_run=dry_run)
    if dry_run:
        console.document(scripts.script(decide(case)))
        return 0
    case = with_image(case, lambda: gather(program, layer, cwd))
    return run_interactively(case)


def run_interactively(case: Case, *, as_json: bool = False) -> int:
    """Get an allocation, run the script in it, and give it back; returns the run's exit code.

    Args:
        case: the run.
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
    process = interactive.start(run, local_name(case.site))
    try:
        with interactive.released_after(run, process):
            interactive.wait_for_nodes(run, process)
            console.say("script", os.path.relpath(run.script))
            if not run.plan.pty:
                return show(run, as_json=as_json)
            outcome = interactive.finish(run, process.wait())
            why = outcome.message if outcome.kind not in ("ok", "failed") else ""
            text = f"exit {outcome.exit_code}  {why}".rstrip()
            console.say("ended", f"{text}; the nodes are free again")
            return outcome.exit_code
    except KeyboardInterrupt:
        console.note("")
        return _cancelled(run)


def _cancelled(run: Run) -> int:
    """Report what became of a run that was interrupted, and write down how it came out."""
    if not (run.directory / "allocation").is_file():
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
