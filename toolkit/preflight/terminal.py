"""Jobs that somebody waits for at a terminal, and jobs whose ranks want a terminal of their own."""

from __future__ import annotations

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers import LAUNCHERS
from toolkit.model.job import Job


def findings(job: Job) -> list[ToolkitError]:
    """What does not go together with a terminal."""
    return [*_pty(job), *(_interactive(job) if job.interactive else ())]


def _pty(job: Job) -> list[ToolkitError]:
    launcher = LAUNCHERS.get(job.launcher or "")
    if not job.pty or launcher is None or launcher.has_pty:
        return []
    others = (other for other in LAUNCHERS.values() if other.has_pty and not other.is_internal)
    return [
        LauncherMismatchError(
            f"the launcher {job.launcher} gives no rank a terminal",
            place="--pty",
            next_step=f"one of: {', '.join(other.name for other in others)}",
        )
    ]


def _interactive(job: Job) -> list[ToolkitError]:
    least, most = job.node_range
    given = {
        "--array": job.array is not None,
        "--requeue": bool(job.requeue),
        "--nodes": least < most,
    }
    return [
        UsageError(
            "a run that somebody waits for is one job, of so many nodes and once",
            place=option,
            next_step=f"leave out {option}, or --interactive",
        )
        for option, is_given in given.items()
        if is_given
    ]
