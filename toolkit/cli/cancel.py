"""`toolkit cancel`."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.options import complete_runs
from toolkit.records.store import find
from toolkit.runs import status


@click.command("cancel")
@click.argument(
    "run_names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Directory of the runs.",
)
def command(run_names: tuple[str, ...], runs: Path) -> None:
    """Cancel runs, by name or job id; their logs are kept.

    \b
    Examples:
      toolkit cancel train-0007
      toolkit cancel 4711
    """
    for paths in [find(name, runs) for name in run_names]:
        state, outcome = status.current(paths)
        if outcome is not None or state is None:
            console.note(
                console.subject(
                    "ended",
                    f"{paths.name} has ended already: {outcome.state if outcome else 'Slurm has forgotten it'}",
                )
            )
            continue
        submission = status.submission_of(paths)
        status.client_of(submission).cancel(submission.job_id)
        console.note(console.subject("cancelled", f"{paths.name}, job {submission.job_id}"))
