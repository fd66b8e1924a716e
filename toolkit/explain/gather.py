"""The edge of explain: what is known of a run, from its directory; or of a log that somebody kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from toolkit.errors import ConfigError
from toolkit.explain.matcher import entries_of, labelled
from toolkit.explain.model import Evidence
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome
from toolkit.quoting import shell
from toolkit.records.store import Paths
from toolkit.runs import excerpt, logs, status
from toolkit.runs.logs import ends
from toolkit.runs.outcome import OVER_MEMORY


def of_run(paths: Paths) -> tuple[Evidence, Outcome | None]:
    """What a run's directory holds, and how it came out; None: it has not ended, as far as is known.

    Raises:
        SlurmUnreachableError: it was never submitted.
    """
    submission = status.submission_of(paths)
    plan = paths.read_plan()
    printed = excerpt.of_run(paths, plan, submission.job_id).lines
    entries = entries_of(
        (line.text, line.host, line.rank) for line in printed if not logs.is_noise(line.text)
    )
    outcome = paths.read_outcome()
    if outcome is None:
        return Evidence(
            entries,
            launcher=plan.launch.launcher,
            forced=_forced(plan),
            names=_names(paths, plan, submission.job_id),
        ), None
    # A rank that fails because its node is gone is a consequence: the node comes first.
    failure = None if outcome.kind == "lost" else outcome.failure
    return (
        Evidence(
            entries=entries,
            state=outcome.state,
            exit_code=outcome.exit_code,
            launcher=plan.launch.launcher,
            nodes_down=outcome.unhealthy,
            first_rank=failure.rank if failure else None,
            first_host=(failure.host or "") if failure else "",
            first_text=_first_text(outcome),
            forced=_forced(plan),
            failure=failure,
            names=_names(paths, plan, submission.job_id),
        ),
        outcome,
    )


def _first_text(outcome: Outcome) -> str:
    failure = outcome.failure
    if outcome.kind == "lost" or (outcome.kind == "timeout" and failure and failure.words):
        return outcome.message
    if failure and not failure.words and outcome.message.startswith(OVER_MEMORY):
        # Slurm kills all tasks of the step, and tells of the first.
        return outcome.message.partition(";")[0]
    return failure.text if failure else ""


def _names(paths: Paths, plan: Plan, job_id: int) -> dict[str, str]:
    """Return what placeholders of fixes stand for."""
    image = {"image": plan.container.name} if plan.container.image else {}
    run_path = shell(os.path.relpath(paths.directory))
    return {"run": paths.word, "run_path": run_path, "job": str(job_id), **image}


def _forced(plan: Plan) -> tuple[str, ...]:
    return (*plan.forced.findings, f"because: {plan.forced.reason}") if plan.forced else ()


def of_file(path: Path) -> Evidence:
    """A log file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Evidence(labelled(ends(path, excerpt.MOST)))
    except OSError as error:
        raise ConfigError(
            f"the log cannot be read: {error.strerror}",
            place=str(path),
            next_step="toolkit explain RUN|LOGFILE",
        ) from None


def of_stream(stream: BinaryIO) -> Evidence:
    """Read a log from standard input, by way of a file: both ends of a large one are needed."""
    import shutil
    import tempfile

    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.flush()
        return of_file(Path(copy.name))


def of_capture(path: Path) -> Evidence:
    """Evidence that was kept as JSON: the fields of ``Evidence``, and ``lines`` as text, host and rank."""
    import json

    data = json.loads(path.read_text(encoding="utf-8"))
    lines = data.pop("lines")
    return Evidence(entries=entries_of((text, host, rank) for text, host, rank in lines), **data)
