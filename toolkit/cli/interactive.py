"""Runs that the user waits for: `toolkit run --interactive` and `toolkit shell`."""

from __future__ import annotations

import os
import shutil
import sys

from toolkit.cli import console
from toolkit.errors import SlurmUnreachableError, UsageError
from toolkit.localcluster.access import local_name
from toolkit.model.plan import Plan
from toolkit.planning.gather import GatheredInputs
from toolkit.records.store import Paths
from toolkit.runs import interactive
from toolkit.runs.submit import write
from toolkit.slurm.client import Client

CANCELLED = 130


def run_interactively(prepared: GatheredInputs, *, as_json: bool = False) -> int:
    """Get an allocation, run the script in it, and give it back; returns the run's exit code.

    Raises:
        UsageError: a terminal is needed, and there is none.
        SubmissionError: there was no allocation.
    """
    if prepared.inputs.job.pty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        step = (
            "type it in a terminal; where there is none: toolkit run (with --pty for programs that "
            "want one)"
        )
        raise UsageError("standard input and output are no terminal", place="--pty", next_step=step)
    paths, decided = write(prepared.inputs)
    console.note(console.subject("plan", console.plan_summary(decided)))
    cluster = local_name(prepared.inputs.site)
    process = interactive.start(prepared.client, paths, decided)
    try:
        with interactive.released_after(prepared.client, process, paths, pty=decided.pty):
            submission = interactive.granted(process, paths, decided, cluster)
            console.note(console.subject("script", os.path.relpath(paths.script)))
            if decided.pty:
                came_out = interactive.finish(prepared.client, paths, decided, process.wait())
                why = came_out.message if came_out.kind not in ("ok", "failed") else ""
                console.note(
                    console.subject(
                        "ended",
                        f"exit {came_out.exit_code}  {why}".rstrip() + "; the nodes are free again",
                    )
                )
                return came_out.exit_code
            from toolkit.cli.follow import show

            return show(prepared.client, paths, decided, submission.job_id, as_json=as_json)
    except KeyboardInterrupt:
        console.note("")
        return _cancelled(prepared.client, paths, decided)


def _cancelled(client: Client, paths: Paths, decided: Plan) -> int:
    """Report what became of a run that was interrupted, and write down how it came out."""
    if not paths.allocation.is_file():
        shutil.rmtree(paths.directory)
        console.note(console.subject("cancelled", "it waits no more; nothing was started"))
        return CANCELLED
    try:
        if paths.submission.is_file():
            interactive.finish(client, paths, decided, CANCELLED)
        console.note(console.subject("cancelled", f"{paths.name}; the nodes are free again"))
    except SlurmUnreachableError as error:
        console.note(
            console.subject(
                "cancelled",
                f"{paths.name}; {error.cause}: the nodes are free as soon as it does (toolkit ps)",
            )
        )
    return CANCELLED
