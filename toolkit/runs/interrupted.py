"""Submissions that were interrupted: `toolkit run` was killed, or lost its connection, between sbatch and the record of its job."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ConfigError, SlurmUnreachableError
from toolkit.files import read_json
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import Attempt, Submission
from toolkit.planning.inputs import Inputs
from toolkit.planning.plan import plan
from toolkit.records.store import Paths
from toolkit.runs import follow, once, status
from toolkit.runs.submit import repeatable
from toolkit.slurm.client import AnswerLostError
from toolkit.slurm.patience import Wait

_SBATCH_SECONDS = 70.0  # sbatch itself gives up earlier


class Resumed(NamedTuple):
    """A run whose job Slurm has, although nobody recorded it."""

    paths: Paths
    plan: Plan
    submission: Submission


def resume(inputs: Inputs, wait: Wait) -> Resumed | None:
    """Return the run of the same job whose submission was interrupted, if Slurm has it; so that it is not submitted twice.

    Any other interrupted run is left to `toolkit ps`.
    """
    for paths, attempt in _interrupted(Path(inputs.run_directory).parent):
        if not _is_same(paths, attempt, inputs):
            continue
        wait.tell(
            f"the submission of {paths.name} was interrupted; asking Slurm whether it has the job"
        )
        _await_sbatch(attempt.mark)
        try:
            once.look(
                status.client_of(attempt),
                attempt.mark,
                wait,
                AnswerLostError("the submission was interrupted"),
            )
            submission = once.recovered(paths, status.client_of)
        except SlurmUnreachableError:
            continue  # the new submission will say so, or reach another cluster
        if submission is not None:
            return Resumed(paths, follow.read_plan(paths), submission)
    return None


def _interrupted(runs: Path) -> Iterator[tuple[Paths, Attempt]]:
    for file in sorted(runs.glob("*/attempt.json")):
        paths = Paths(file.parent)
        try:
            attempt = read_json(file, Attempt)
        except ConfigError:
            continue
        if not paths.submission.exists() and not once.is_under_way(attempt):
            yield paths, attempt


def _is_same(paths: Paths, attempt: Attempt, inputs: Inputs) -> bool:
    """Return whether a run is of the same settings and of a script that has not changed since."""
    try:
        before = read_json(paths.job, Job)
        changed = 0.0 if inputs.program else Path(before.script or "").stat().st_mtime
    except (ConfigError, OSError):
        return False
    return (
        before == repeatable(inputs, plan(inputs))
        and changed <= datetime.fromisoformat(attempt.submitted).timestamp() + 1
    )


def _await_sbatch(mark: str) -> None:
    """Wait for an sbatch that outlived the process that started it: it may be about to submit."""
    until = time.monotonic() + _SBATCH_SECONDS
    while time.monotonic() < until and any(mark.encode() in words for words in own_commands()):
        time.sleep(0.2)


def own_commands() -> Iterator[bytes]:
    """Yield the command lines of this user's other processes on this host."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if entry.stat().st_uid == os.geteuid():
                    yield (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
