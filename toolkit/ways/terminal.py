"""Jobs that somebody waits for at a terminal, and jobs whose ranks want a terminal of their own."""

from __future__ import annotations

from toolkit.errors import LauncherMismatchError, ShapeError, ToolkitError, UsageError
from toolkit.launchers import LAUNCHERS
from toolkit.model.job import Job
from toolkit.model.site import Site


def findings(job: Job, site: Site, minutes: int | None) -> list[ToolkitError]:
    """What does not go together with a terminal.

    Args:
        job: the merged settings.
        site: where it runs.
        minutes: the job's time limit; None: it has none, or that of its partition.
    """
    return [*_pty(job), *(_interactive(job, site, minutes) if job.interactive else ())]


def _pty(job: Job) -> list[ToolkitError]:
    entry = LAUNCHERS.get(job.launcher or "")
    if not job.pty or entry is None or entry.pty:
        return []
    having = ", ".join(name for name, other in LAUNCHERS.items() if other.pty and name != "shell")
    return [LauncherMismatchError(f"the launcher {job.launcher} gives no rank a terminal", place="--pty", next_step=f"one of: {having}")]


def _interactive(job: Job, site: Site, minutes: int | None) -> list[ToolkitError]:
    least, most = job.node_range
    given = {
        "--array": job.array is not None,
        "--requeue": bool(job.requeue),
        "--nodes": least < most,
    }
    found: list[ToolkitError] = [
        UsageError(
            "a run that somebody waits for is one job, of so many nodes and once",
            place=option,
            next_step=f"leave out {option}, or --interactive",
        )
        for option, is_given in given.items()
        if is_given
    ]
    if site.interactive_minutes is not None and minutes is not None and minutes > site.interactive_minutes:
        cause = f"site {site.name} gives interactive jobs {site.interactive_minutes} minutes at most, {minutes} were asked for"
        found.append(ShapeError(cause, place="--time", next_step=f"--time {site.interactive_minutes}, or a batch job"))
    return found
