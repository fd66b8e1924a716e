"""Remove runs that have ended, and only these: Slurm is asked about each without an outcome."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit.errors import (
    BusyError,
    ConfigError,
    ForbiddenError,
    SlurmUnreachableError,
    ToolkitError,
)
from toolkit.images.store import usage
from toolkit.model.base import Model
from toolkit.runs import once, status
from toolkit.runs.store import Paths
from toolkit.runtimes import RUNTIMES
from toolkit.slurm import queue

_PAUSE = 0.5  # seconds between two questions to Slurm
# Seconds for a canceled job to end; Slurm kills its processes after KillWait, 30 s.
_PATIENCE = 90.0
_BEING_WRITTEN = 300.0  # seconds that a run may exist before its submission begins
_MARK = ".removed-"


class Removal(Model, frozen=True, kw_only=True):
    """A run that could be removed.

    Attributes:
        run: its name.
        directory: absolute path.
        size: in bytes.
        age: in seconds, since it ended.
        reason: why it stays; empty if it can be removed.
    """

    run: str
    directory: str
    size: int
    age: float
    reason: str = msgspec.field(name="kept", default="")


class _Reason(NamedTuple):
    """The reason for which a run must stay.

    Attributes:
        text: for people.
        has_job: a job is known that can be cancelled.
        is_certain: Slurm reports it; else it is not known, and the user may know better.
    """

    text: str
    has_job: bool = False
    is_certain: bool = True


def reason_to_stay(paths: Paths, refresh: status.Refresh | None = None) -> str:
    """Return why a run must not be removed; empty if it has ended."""
    reason = _reason(paths, refresh)
    return reason.text if reason else ""


def _reason(paths: Paths, refresh: status.Refresh | None = None) -> _Reason | None:
    try:
        paths.read_plan()
        state, outcome = status.current(paths, refresh)
    except SlurmUnreachableError as error:
        return _Reason(f"it is not known whether it has ended: {error.cause}", is_certain=False)
    except (ToolkitError, OSError) as error:
        return _Reason(f"its files cannot be read: {error}", is_certain=False)
    if outcome is not None:
        return None
    if state is not None:
        return _Reason(f"job {state.job_id} is {state.state.lower()}", has_job=True)
    submission = paths.read_submission()
    if submission is None:
        return _unsubmitted(paths)
    if submission.cluster is not None:  # a local cluster forgets no job that runs
        return None
    return _Reason(
        f"Slurm does not know job {submission.job_id}: it ended long ago, or is another cluster's",
        is_certain=False,
    )


def _unsubmitted(paths: Paths) -> _Reason | None:
    """Return why a run without a job must stay: it is about to get one."""
    if not once.is_over(paths):
        return _Reason("it is being submitted, or waits for an allocation")
    if paths.attempt.is_file():
        if status.was_never_submitted(paths):
            return None
        return _Reason("it is not known whether Slurm has its job: toolkit ps", is_certain=False)
    if time.time() - paths.plan.stat().st_mtime < _BEING_WRITTEN:
        return _Reason("it is being submitted")
    return None


def remove(runs: Sequence[Paths], *, cancel: bool = False, force: bool = False) -> int:
    """Remove runs; nothing is removed if one of them has to stay.

    Args:
        runs: what to remove.
        cancel: cancel those that have not ended, and wait for their end.
        force: also runs of which it is not known whether they have ended.

    Returns:
        the number of bytes that were freed.

    Raises:
        BusyError: a run has not ended.
        ForbiddenError: a run is not a directory of its own or is another user's, or a file cannot
            be removed.
    """
    for paths in runs:
        _check(paths, is_forced=force)
    refresh = status.Refresh(runs)
    reasons = {paths: reason for paths in runs if (reason := _reason(paths, refresh))}
    if cancel:
        _cancel(paths for paths, reason in reasons.items() if reason.has_job)
        reasons = {paths: reason for paths in reasons if (reason := _reason(paths))}
    staying = {paths: why for paths, why in reasons.items() if why.is_certain or not force}
    if staying:
        raise _busy(staying)
    return sum(_remove(paths) for paths in runs)


def _check(paths: Paths, *, is_forced: bool) -> None:
    """Refuse what is not a run, or cannot be removed from here.

    Raises:
        ConfigError: its plan cannot be read.
    """
    require_no_link(paths.directory)
    paths.require_own()
    if not (is_forced and paths.script.is_file()):
        paths.read_plan()
    if Path.cwd().is_relative_to(paths.directory.resolve()):
        raise ForbiddenError(
            f"the current directory is in {paths.name}",
            place=str(paths.directory),
            next_step="change to another directory",
        )


def require_no_link(directory: Path) -> None:
    """Raise ForbiddenError if a run's directory is named by a symbolic link to it."""
    if directory.is_symlink():
        raise ForbiddenError(
            f"{directory} is a symbolic link; only a directory is removed",
            place=str(directory),
            next_step="give the directory that it links to",
        )


def _busy(staying: dict[Paths, _Reason]) -> BusyError:
    first = next(iter(staying.values()))
    count = len(staying)
    step = "toolkit rm --cancel cancels it first" if first.has_job else "wait until Slurm answers"
    return BusyError(
        "nothing was removed: "
        + ("a run has" if count == 1 else f"{count} runs have")
        + " not ended",
        details=[f"{paths.name}: {why.text}" for paths, why in staying.items()],
        next_step=step if first.is_certain else "if you know that it has ended: toolkit rm --force",
    )


def _cancel(runs: Iterable[Paths]) -> None:
    """Cancel jobs, and wait for their end, for a limited time."""
    waiting = list(runs)
    for paths in waiting:
        submission = status.submission_of(paths)
        status.client_of(submission).cancel(submission.job_id)
    until = time.monotonic() + _PATIENCE
    while waiting and time.monotonic() < until:
        waiting = [paths for paths in waiting if reason_to_stay(paths)]
        time.sleep(_PAUSE if waiting else 0)


def _remove(paths: Paths) -> int:
    """Remove a run's directory. It is renamed first, so that no partial run is ever listed.

    ``shutil.rmtree`` opens each directory from its parent and does not follow symbolic links: their
    targets stay, also if a link is created meanwhile.
    """
    size, image = size_of(paths.directory), _image(paths)
    aside = paths.directory.with_name(f".{paths.name}{_MARK}{secrets.token_hex(4)}")
    try:
        paths.directory.rename(aside)
        _remove_tree(aside)
    except OSError as error:
        raise ForbiddenError(
            f"{paths.name} could not be removed as a whole: {error.strerror}",
            place=str(error.filename or aside),
            next_step=f"see who owns it: ls -l {aside if aside.exists() else paths.directory}",
        ) from error
    if image is not None:
        usage.release(image, paths.directory)
    _sweep(paths.directory.parent)
    return size


def _remove_tree(directory: Path) -> None:
    """Remove a directory, also while another process removes it."""
    while directory.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)


def _sweep(runs: Path) -> None:
    """Remove the rest of runs whose removal was interrupted."""
    with suppress(OSError):
        for left in runs.glob(f".*{_MARK}*"):
            shutil.rmtree(left, ignore_errors=True)


def _image(paths: Paths) -> Path | None:
    try:
        container = paths.read_plan().container
    except ConfigError:
        return None
    runtime = RUNTIMES.get(container.runtime)
    is_sif = runtime is not None and runtime.image == "sif"
    return Path(container.image) if is_sif and container.image else None


def size_of(directory: Path) -> int:
    """Return the bytes that a directory's files take; symbolic links count as themselves."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
    return total


def candidates(
    runs: Sequence[Paths], *, older_than: float | None, keep: int | None
) -> tuple[Removal, ...]:
    """Return the runs to remove by their age and number.

    Args:
        runs: of one directory, the newest first.
        older_than: only runs that ended more seconds ago than this.
        keep: never this many of the newest.
    """
    refresh = status.Refresh(runs)
    ages = ((paths, _age(paths)) for paths in runs[keep or 0 :])
    return tuple(
        Removal(
            run=paths.name,
            directory=str(paths.directory.absolute()),
            size=size_of(paths.directory),
            age=age,
            reason="it belongs to another user"
            if not paths.is_own
            else reason_to_stay(paths, refresh),
        )
        for paths, age in ages
        if older_than is None or age > older_than
    )


def _age(paths: Paths) -> float:
    """Return the seconds since a run ended, or was planned if its end is not known."""
    for file in (paths.outcome, paths.plan):
        with suppress(OSError):
            return max(0.0, time.time() - file.stat().st_mtime)
    return 0.0


def holds_image(use: usage.Use) -> bool:
    """Return whether a run still uses its image, for `toolkit image remove` and `prune`.

    If the run's directory is gone, Slurm is asked for its job. The jobs of a local cluster that is
    not up have ended.
    """
    paths = Paths(use.run)
    try:
        if paths.plan.is_file():
            return _holds(_reason(paths), paths)
        return _is_in_slurm(use) if use.job_id else use.run.exists()
    except SlurmUnreachableError:
        return use.cluster is None


def _holds(reason: _Reason | None, paths: Paths) -> bool:
    if reason is None or reason.is_certain:
        return reason is not None
    submission = paths.read_submission()
    if submission is None or submission.cluster is None:
        return True
    status.client_of(submission)  # raises where the local cluster is not up
    return True


def _is_in_slurm(use: usage.Use) -> bool:
    from toolkit.model.run import Submission

    job = Submission(job_id=use.job_id, site="", submitted="", cluster=use.cluster)
    state = status.client_of(job).jobs([use.job_id]).get(use.job_id)
    if state is None or state.ended:
        return False
    script = str(Paths(use.run).script)
    return not state.command or queue.is_command_of(state.command, script)
