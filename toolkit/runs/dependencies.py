"""Translate ``--after train-0007`` to Slurm's dependency ``afterok:4711``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import ToolkitError, UsageError
from toolkit.runs import status
from toolkit.runs.store import Paths, find
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
    paths = find(name, runs)
    require_trusted(paths.directory)
    state, came_out = status.current(paths)
    if came_out is not None:
        _check(how, paths, well=came_out.kind == "ok")
        return None
    submission = status.submission_of(paths)
    if submission.cluster != cluster:
        raise UsageError(
            f"{paths.name} runs on another cluster: {submission.cluster or submission.site}",
            next_step="--site",
        )
    if state is None:
        raise UsageError(
            f"the outcome of {paths.name} is not known: Slurm has forgotten the job",
            next_step=f"toolkit logs {paths.name}",
        )
    return f"{how}:{submission.job_id}"


def _check(how: str, paths: Paths, *, well: bool) -> None:
    """Raise UsageError if a run that has ended came out so that Slurm would never start the job."""
    if how != "afterany" and well != (how == "afterok"):
        outcome = "succeeded" if well else "failed"
        raise UsageError(
            f"{paths.name} {outcome}: a job with {how} on it would never start",
            next_step=f"--after afterany:{paths.name}, or leave it out",
        )
