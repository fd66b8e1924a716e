"""`toolkit shell`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.options import flags, job_options
from toolkit.errors import UsageError

SECTION = "Run"


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
def command(program: str, arguments: tuple[str, ...], dry_run: bool, **options: Any) -> int:
    """Open a shell in an image, on a node of the cluster.

    It is a job of its own, and its exit code is the shell's.

    The terminal is that of the node: its size follows yours, and Ctrl-C goes to the program in the
    shell. PROGRAM (default: bash) is started with its arguments. With several nodes, the shell is
    on the first; the job has all of them, and ends with the shell.

    \b
    Examples:
      toolkit shell --image pytorch_cpu
      toolkit shell --image pytorch_22.03 --gpus-per-node 4 --time 2:00:00
      toolkit shell --image pytorch_cpu --cpus-per-task 4 -- python3 -i train.py
    """
    from toolkit.cli.interactive import run_interactively
    from toolkit.runs.submit import gather_run

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
    prepared = gather_run(program, layer, cwd, dry_run=dry_run)
    if dry_run:
        from toolkit import scripts
        from toolkit.planning.plan import plan
        from toolkit.runs.submit import frozen

        console.document(scripts.script(plan(frozen(prepared.inputs))))
        return 0
    if prepared.inputs.to_fetch:
        from toolkit.cli.run import fetch_image

        fetch_image(prepared.inputs)
        prepared = gather_run(program, layer, cwd)
    return run_interactively(prepared)
