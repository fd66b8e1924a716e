"""Cancel runs, and remove those that have ended: Slurm is asked about each without an outcome."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import (
    BusyError,
    ForbiddenError,
    SlurmUnreachableError,
    ToolkitError,
)
from toolkit.images.store import usage
from toolkit.runs import status
from toolkit.runs.run import Run, client_of
from toolkit.runs.submit import is_over

_PAUSE = 0.5  # seconds between two questions to Slurm
# Seconds for a canceled job to end; Slurm kills its processes after KillWait, 30 s.
_PATIENCE = 90.0
_BEING_WRITTEN = 300.0  # seconds that a run may exist before its submission begins
_MARK = ".removed-"


class Reason(NamedTuple):
    """The reason for which a run must stay.

    Attributes:
        text: for people.
        has_job: a job is known that can be cancelled.
        is_certain: it goes on; else that is not known, and the user may know better.
    """

    text: str
    has_job: bool = False
    is_certain: bool = True


def reason_to_stay(run: Run, answers: status.Answers | None = None) -> Reason | None:
    """Return why a run must not be removed; None if it has ended."""
    try:
        state = status.query(run, answers)
    except SlurmUnreachableError as error:
        return Reason(f"it is not known whether it has ended: {error.cause}", is_certain=False)
    except (ToolkitError, OSError) as error:
        return Reason(f"its files cannot be read: {error}", is_certain=False)
    if run.outcome is not None:
        return None
    if state is not None:
        return Reason(f"job {state.job_id} is {state.state.lower()}", has_job=True)
    if run.job is not None and run.job.job_id is not None:
        if run.job.cluster is not None:  # a local cluster forgets no job that runs
            return None
        ended = "it ended long ago, or is another cluster's"
        return Reason(f"Slurm does not know job {run.job.job_id}: {ended}", is_certain=False)
    if not is_over(run):
        return Reason("it is being submitted, or waits for an allocation")
    if Run(run.directory).number:
        return Reason("it was submitted meanwhile")
    if not status.was_never_submitted(run):
        return Reason("it is not known whether Slurm has its job: toolkit ps", is_certain=False)
    is_new = run.job is None and age(run) < _BEING_WRITTEN
    return Reason("it is being submitted") if is_new else None


def cancel(run: Run) -> bool:
    """Cancel the job of a run of the caller; return False if it has ended already.

    Raises:
        ForbiddenError, UntrustedError: the run is another user's, or could be exchanged.
        SlurmUnreachableError: Slurm does not answer.
    """
    run.require_own()
    state = status.query(run)
    if state is None or run.outcome is not None:  # its number may be that of another job by now
        return False
    run.client.cancel(state.job_id)
    return True


def remove(runs: Sequence[Run], *, cancel: bool = False) -> int:
    """Remove runs; nothing is removed if one of them has to stay.

    Args:
        runs: what to remove.
        cancel: cancel those that have not ended, and wait for their end.

    Returns:
        the number of bytes that were freed.

    Raises:
        BusyError: a run has not ended.
        ForbiddenError: a run is not a directory of its own or is another user's, or a file cannot
            be removed.
    """
    for run in runs:
        _check(run)
    reasons = _reasons(runs)
    until = time.monotonic() + _PATIENCE
    for run in [run for run, reason in reasons.items() if cancel and reason.has_job]:
        run.client.cancel(run.job_id)
    while cancel and time.monotonic() < until and any(each.has_job for each in reasons.values()):
        time.sleep(_PAUSE)
        reasons = _reasons([Run(run.directory) for run in reasons])
    if reasons:
        step = "wait until Slurm answers"
        if any(reason.has_job for reason in reasons.values()):
            step = "toolkit rm --cancel cancels it first"
        elif not any(reason.is_certain for reason in reasons.values()):
            step += "; if you know that it has ended: rm -r its directory"
        who = "a run has" if len(reasons) == 1 else f"{len(reasons)} runs have"
        raise BusyError(
            f"nothing was removed: {who} not ended",
            details=[f"{run.name}: {reason.text}" for run, reason in reasons.items()],
            next_step=step,
        )
    return sum(map(_remove, runs))


def _reasons(runs: Sequence[Run]) -> dict[Run, Reason]:
    answers = status.ask(runs)
    return {run: reason for run in runs if (reason := reason_to_stay(run, answers))}


def _check(run: Run) -> None:
    require_no_link(run.directory)
    run.require_own()
    _ = run.plan


def require_no_link(directory: Path) -> None:
    """Raise ForbiddenError if a run's directory is named by a symbolic link to it."""
    if directory.is_symlink():
        raise ForbiddenError(
            f"{directory} is a symbolic link; only a directory is removed",
            place=str(directory),
            next_step="give the directory that it links to",
        )


def _remove(run: Run) -> int:
    """Remove a run's directory. It is renamed first, so that no partial run is ever listed.

    ``shutil.rmtree`` opens each directory from its parent and does not follow symbolic links: their
    targets stay, also if a link is created meanwhile.
    """
    size, runs = size_of(run.directory), run.directory.parent
    aside = runs / f".{run.name}{_MARK}{secrets.token_hex(4)}"
    try:
        run.directory.rename(aside)
        while aside.exists():
            with suppress(FileNotFoundError):  # another process removes it, as a rest
                shutil.rmtree(aside)
    except OSError as error:
        raise ForbiddenError(
            f"{run.name} could not be removed as a whole: {error.strerror}",
            place=str(error.filename or aside),
            next_step=f"see who owns it: ls -l {aside if aside.exists() else run.directory}",
        ) from error
    with suppress(OSError):
        for rest in runs.glob(f".*{_MARK}*"):  # of a removal that was interrupted
            shutil.rmtree(rest, ignore_errors=True)
    return size


def size_of(directory: Path) -> int:
    """Return the bytes that a directory's files take; symbolic links count as themselves."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
    return total


def candidates(
    runs: Sequence[Run], *, older_than: float | None, keep: int | None
) -> dict[Run, str]:
    """Return the runs to remove by their age and number, and why each has to stay; "": it has not.

    Args:
        runs: of one directory, the newest first.
        older_than: only runs that ended more seconds ago than this.
        keep: never this many of the newest.
    """
    old = [run for run in runs[keep or 0 :] if older_than is None or age(run) > older_than]
    staying = {run: "" if run.is_own else "it belongs to another user" for run in old}
    reasons = _reasons([run for run, text in staying.items() if not text])
    return staying | {run: reason.text for run, reason in reasons.items()}


def age(run: Run) -> float:
    """Return the seconds since a run ended, or was planned if its end is not known."""
    for name in ("outcome.json", "plan.json"):
        with suppress(OSError):
            return max(0.0, time.time() - (run.directory / name).stat().st_mtime)
    return 0.0


def holds_image(use: usage.Use) -> bool:
    """Return whether a run still uses its image, for `toolkit image remove` and `prune`.

    The job of a run whose directory is gone cannot start any more, and those of a local cluster
    that is not up have ended.
    """
    try:
        client_of(use.cluster)
    except SlurmUnreachableError:
        return False
    return (use.run / "plan.json").is_file() and reason_to_stay(Run(use.run)) is not None
