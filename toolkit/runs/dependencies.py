"""Translate ``--after train-0007`` to Slurm's dependency ``afterok:4711``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import ToolkitError, UsageError
from toolkit.runs import status
from toolkit.runs.directories import find
from toolkit.trust import require_trusted

_HOW = ("afterok", "afterany", "afternotok")
_ENTRY = re.compile(rf"(?:(?P<how>{'|'.join(_HOW)}):)?(?P<run>[^:]+)\Z")


def dependencies(
    texts: Iterable[str], runs: Path, cluster: str | None
) -> tuple[tuple[str, ...], list[ToolkitError]]:
    """Return Slurm's dependencies of a job, and what is wrong with those that it names.

    A run that has ended as required is left out.

    Args:
        texts: ``train-0007``, ``afterany:train-0007``, or the number of a job that is no run.
        runs: directory of the runs.
        cluster: name of the local cluster that the job goes to; None: another cluster.
    """
    words: list[str] = []
    findings: list[ToolkitError] = []
    for text in texts:
        try:
            word = _word(text, runs, cluster)
        except ToolkitError as error:
            error.place = "--after"
            findings.append(error)
        else:
            words += [word] if word else []
    return tuple(dict.fromkeys(words)), findings


def _word(text: str, runs: Path, cluster: str | None) -> str | None:
    match = _ENTRY.match(text)
    if not match:
        raise UsageError(
            f"{text!r} does not name a run",
            choices=_HOW,
            next_step="--after train-0007, or --after afterany:train-0007",
        )
    how, name = match["how"] or "afterok", match["run"]
    if name.isdigit():
        return f"{how}:{name}"
    run = find(name, runs)
    require_trusted(run.directory)
    state = status.query(run)
    if run.outcome is not None:
        succeeded = run.outcome.kind == "ok"
        if how != "afterany" and succeeded != (how == "afterok"):
            outcome = "succeeded" if succeeded else "failed"
            raise UsageError(
                f"{run.name} {outcome}: a job with {how} on it would never start",
                next_step=f"--after afterany:{run.name}, or leave it out",
            )
        return None
    number = run.job_id
    if run.job is not None and run.job.cluster != cluster:
        raise UsageError(
            f"{run.name} runs on another cluster: {run.job.cluster or run.job.site}",
            next_step="--site",
        )
    if state is None:
        raise UsageError(
            f"the outcome of {run.name} is not known: Slurm has forgotten the job",
            next_step=f"toolkit logs {run.name}",
        )
    return f"{how}:{number}"
