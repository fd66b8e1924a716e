"""`toolkit bench compare`: trainings side by side in one table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from toolkit.cli import console
from toolkit.cli.options import flags, job_options
from toolkit.cli.shared import json_option


def _jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tab completion: the shipped jobs, and runs below runs/."""
    del ctx, param
    from toolkit.resources import shipped

    names = [f"jobs/{path.parent.name}" for path in shipped("jobs").glob("*/job.toml")]
    names += [f"runs/{path.parent.name}" for path in Path("runs").glob("*/outcome.json")]
    return sorted(name for name in names if name.startswith(incomplete))


@click.command("compare")
@job_options
@click.option(
    "--arguments",
    metavar="WORDS",
    default="",
    help="More arguments for every script, as one text: --arguments '--epochs 3'.",
)
@click.option(
    "--runs",
    "rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs of each job, in turns; medians are shown.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the scripts that would be submitted, and stop."
)
@json_option
@click.argument("jobs", nargs=-1, required=True, shell_complete=_jobs)
def command(
    jobs: tuple[str, ...], arguments: str, rounds: int, dry_run: bool, as_json: bool, **options: Any
) -> int:
    """Compare trainings: samples per second, memory, accuracy.

    The jobs run one after the other. A job is a folder with a job.toml, or a training script. The
    directory of a run that has ended is not run again. Speed and accuracy are what the script
    prints in its last line of JSON (samples_per_second, accuracy); memory is the most that one
    process of the script had.

    \b
    Examples:
      toolkit bench compare jobs/digits-dataparallel jobs/digits-ddp jobs/digits-horovod
      toolkit bench compare --gpus 4 --nodes 1 --runs 3 jobs/digits-dataparallel jobs/digits-ddp
      toolkit bench compare runs/digits-ddp-0001 runs/digits-ddp-0002
    """
    from toolkit.bench import compare
    from toolkit.bench.jobs import script_of
    from toolkit.cli.outcome import show_explanation, show_outcome

    layer = compare.settings(flags(options, ()).values, shlex.split(arguments))
    if dry_run:
        for job in jobs:
            console.out(script_of(job, layer, Path.cwd()).rstrip("\n"))
        return 0
    try:
        rows = compare.run(
            jobs,
            layer,
            rounds,
            Path.cwd(),
            lambda subject, text: console.note(console.subject(subject, text)),
        )
    except compare.FailedRunError as failed:
        show_outcome(failed.ran.outcome, failed.ran.paths)
        show_explanation(failed.ran.paths)
        return failed.ran.outcome.exit_code or 1
    if as_json:
        console.out_json(rows)
    else:
        console.out(console.table(*compare.table(rows)))
    return 0
